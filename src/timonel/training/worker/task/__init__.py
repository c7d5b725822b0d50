"""What a process of a job is given, and what it tells: its place, its script, its result."""
