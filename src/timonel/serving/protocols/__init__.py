"""Serving protocols: TensorFlow Serving REST and gRPC, and the Open Inference Protocol."""
