"""Training data: batch sizes, distribution of rows, and caches."""
