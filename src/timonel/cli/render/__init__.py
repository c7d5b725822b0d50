"""Rendering of results: pure functions for the commands, testable without them."""
