"""Clients of model servers, without TensorFlow."""
