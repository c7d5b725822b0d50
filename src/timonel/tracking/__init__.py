"""Package tracking."""
