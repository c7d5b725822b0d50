"""Metrics, traces and request logs of a server."""
