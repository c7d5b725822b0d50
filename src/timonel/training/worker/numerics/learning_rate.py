"""Learning rate of a job: the script's own, scaled and warmed up.

Scripts and callbacks read and set the unscaled rate. Only during an update, the optimizer sees it
multiplied by `Rule.factor`, a function of the number of updates only, so that it is the same after
a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from timonel.training.options import LearningRateRule


@dataclass(frozen=True)
class Rule:
    """Scaling rule of the learning rate.

    Attributes:
        scale: Factor.
        warmup: Updates of a linear warm-up: update ``n``, from 1, uses ``n / warmup`` of the rate.
    """

    scale: float = 1.0
    warmup: int = 0

    @property
    def changes_nothing(self) -> bool:
        """Whether the script's own learning rate is used unchanged."""
        return self.scale == 1.0 and self.warmup <= 1

    def factor(self, updates: Any) -> Any:
        """Return the factor of the learning rate after ``updates`` updates.

        Args:
            updates: An int, or an integer tensor.
        """
        if self.warmup <= 1:
            return self.scale
        if isinstance(updates, int):
            return self.scale * min(1.0, (updates + 1) / self.warmup)
        import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

        part = tf.cast(updates + 1, tf.float32) / float(self.warmup)
        return self.scale * tf.minimum(1.0, part)


def rule(name: LearningRateRule, *, replicas: int, warmup: int) -> Rule:
    """Return the rule of a job.

    Args:
        name: How the learning rate scales with the replicas.
        replicas: Number of replicas.
        warmup: Updates of the warm-up.
    """
    scales = {"none": 1.0, "linear": float(replicas), "sqrt": math.sqrt(replicas)}
    return Rule(scales[name], warmup)


def described(used: Rule, name: LearningRateRule, replicas: int) -> str:
    """Describe the changes to the script's learning rate."""
    parts = []
    if name != "none":
        parts.append(f"multiplied by {used.scale:g} ({name} in {replicas} replicas)")
    if used.warmup > 1:
        parts.append(f"grows to its value in {used.warmup} updates")
    return f"the script's learning rate is {' and '.join(parts)}"
