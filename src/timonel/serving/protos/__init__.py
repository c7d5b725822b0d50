"""Protocol buffers of TensorFlow and TensorFlow Serving, without TensorFlow."""
