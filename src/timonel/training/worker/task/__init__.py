"""A task's cluster, program, parameters, result and heartbeat."""
