"""Training scripts drawn at random, and their jobs: calm ones, and those that are killed."""
