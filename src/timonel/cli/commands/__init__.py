"""One module per command, each with an ``app``; imported when its command is asked for."""
