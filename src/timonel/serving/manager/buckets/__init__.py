"""Versions in buckets: listed, downloaded into a verified cache, and served from there."""
