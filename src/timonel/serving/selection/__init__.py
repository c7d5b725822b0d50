"""The choice of a runtime for each version."""
