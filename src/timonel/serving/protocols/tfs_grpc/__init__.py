"""TensorFlow Serving's gRPC API: PredictionService and ModelService."""
