"""State of a ``fit`` call: capture, checkpoint files and restore."""
