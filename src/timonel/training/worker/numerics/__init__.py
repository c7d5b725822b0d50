"""Numerics of a job: precision, gradients and learning rate."""
