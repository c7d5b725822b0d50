"""The measuring process: which runtime computes a version best."""
