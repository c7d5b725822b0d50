"""Code of a training job's processes; imported only by the bootstrap."""
