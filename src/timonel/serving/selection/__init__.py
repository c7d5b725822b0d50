"""Choice of a runtime for each version."""
