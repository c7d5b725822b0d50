"""timonel: from a folder of images or a CSV to a versioned TensorFlow endpoint."""
