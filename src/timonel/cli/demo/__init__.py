"""Demo of the whole path, with the commands a user would type."""
