"""The gRPC skin. Imports TensorFlow: servers only."""
