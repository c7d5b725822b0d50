"""Code that runs inside a training job's processes; imported only by the bootstrap."""
