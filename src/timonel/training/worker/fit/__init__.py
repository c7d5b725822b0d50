"""Managed ``fit`` calls with checkpoints, exact resume and progress reports."""
