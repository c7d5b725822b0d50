"""What a job tells of its training while it runs."""
