"""What the benchmark of training measures, row by row."""
