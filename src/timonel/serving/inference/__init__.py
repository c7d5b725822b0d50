"""The flow of requests: the code that all protocols share. All functions raise `StatusError`."""
