"""The evaluator: the same script beside training, whose ``fit`` evaluates instead of training."""

from timonel.training.worker.evaluator.process import run

__all__ = ["run"]
