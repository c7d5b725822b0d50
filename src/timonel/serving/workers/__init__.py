"""Several fronts in front of the same compute processes: one leader, and workers that listen."""
