"""The command line: commands parse, call the public API and print."""
