"""Batching: requests are put together before the model computes them."""
