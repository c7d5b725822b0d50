"""Safe loading: what a SavedModel may do is found out before any of it runs."""
