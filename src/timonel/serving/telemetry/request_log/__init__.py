"""Sampled log of requests and answers on disk.

For warm-up, training and inspection.
"""
