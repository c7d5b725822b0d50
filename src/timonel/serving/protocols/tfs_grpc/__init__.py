"""The gRPC skin: PredictionService and ModelService over the data plane."""
