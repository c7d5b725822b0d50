"""Which runtime computes a version best: measured once, and written into it."""
