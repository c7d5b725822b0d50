"""A sample of requests and answers on disk, for warm-up, for training, and to look at later."""
