"""Options of commands with many options, as annotated types."""
