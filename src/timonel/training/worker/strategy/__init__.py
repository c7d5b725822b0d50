"""Choice of a job's distribution strategy, devices and options."""
