"""One module per command, each with an ``app``; imported when the command runs."""
