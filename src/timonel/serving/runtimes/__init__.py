"""Runtimes: load a version and compute its signatures."""
