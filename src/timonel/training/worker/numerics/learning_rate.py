"""The learning rate that a job trains with: the script's own, scaled and warmed up.

What a script and its callbacks read and set is the learning rate as they know it. While an update
is made, and only then, the optimizer sees it multiplied by `Rule.factor`: a function of the number
of updates and of nothing else, so that it is the same after a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from timonel.training.settings import LearningRateRule


@dataclass(frozen=True)
class Rule:
    """How the learning rate follows from the script's own.

    Attributes:
        scale: What it is multiplied by.
        warmup: Updates in which it grows to its value, evenly: update ``n``, counting from 1, has
            ``n / warmup`` of it.
    """

    scale: float = 1.0
    warmup: int = 0

    @property
    def changes_nothing(self) -> bool:
        """Whether the script's own learning rate is the one."""
        return self.scale == 1.0 and self.warmup <= 1

    def factor(self, updates: Any) -> Any:
        """Return what the learning rate is multiplied by after ``updates`` updates.

        Args:
            updates: A number, or a tensor of an integer type.
        """
        if self.warmup <= 1:
            return self.scale
        if isinstance(updates, int):
            return self.scale * min(1.0, (updates + 1) / self.warmup)
        import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

        part = tf.cast(updates + 1, tf.float32) / float(self.warmup)
        return self.scale * tf.minimum(1.0, part)


def rule(name: LearningRateRule, *, replicas: int, warmup: int) -> Rule:
    """Return the rule of a job.

    Args:
        name: How the learning rate grows with the replicas.
        replicas: How many train together.
        warmup: Updates in which it grows to its value.
    """
    scales = {"none": 1.0, "linear": float(replicas), "sqrt": math.sqrt(replicas)}
    return Rule(scales[name], warmup)


def described(used: Rule, name: LearningRateRule, replicas: int) -> str:
    """Return in words what becomes of the script's learning rate."""
    parts = []
    if name != "none":
        parts.append(f"multiplied by {used.scale:g} ({name} in {replicas} replicas)")
    if used.warmup > 1:
        parts.append(f"grows to its value in {used.warmup} updates")
    return f"the script's learning rate is {' and '.join(parts)}"
