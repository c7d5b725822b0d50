"""The server's protocols: TensorFlow Serving's REST and gRPC, and the Open Inference Protocol."""
