"""Command line: commands parse their arguments, call the public API and print."""
