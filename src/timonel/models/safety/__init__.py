"""Safe loading: check what a SavedModel can do before running it."""
