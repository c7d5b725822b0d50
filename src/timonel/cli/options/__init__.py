"""Options of commands that have many, as annotated types."""
