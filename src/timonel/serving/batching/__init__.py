"""Batching: combine requests before the model computes them."""
