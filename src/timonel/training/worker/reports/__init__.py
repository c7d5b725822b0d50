"""Reports of a job's training: progress, metrics, pace and profiles."""
