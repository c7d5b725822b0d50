"""What runs inside each process of a training job; imported by the bootstrap only."""
