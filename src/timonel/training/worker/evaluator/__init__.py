"""Evaluator: runs the same script beside training, where ``fit`` only evaluates."""

from timonel.training.worker.evaluator.process import run

__all__ = ["run"]
