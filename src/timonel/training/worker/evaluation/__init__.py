"""Evaluating checkpoints beside training: what an evaluator does, what trainers leave to it."""
