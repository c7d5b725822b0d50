"""Uses of private names of TensorFlow and Keras."""
