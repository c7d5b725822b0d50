"""Compute runtimes: what loads a version and runs it."""
