"""Sampled log of requests and answers on disk, for warm-up, training and inspection."""
