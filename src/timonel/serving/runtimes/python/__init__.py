"""Python models. Their code runs in a child process of each version, never in the server."""
