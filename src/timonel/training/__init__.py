"""Package training."""
