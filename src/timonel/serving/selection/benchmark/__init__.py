"""Measuring process that chooses the best runtime for a version."""
