"""TensorFlow Serving's REST API."""
