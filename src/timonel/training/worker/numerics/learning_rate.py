"""Learning rate of a job: the script's own, scaled and warmed up.

Scripts and callbacks read and set the unscaled rate. Only during an update, the optimizer sees it
multiplied by `RateScaling.factor`, a function of the number of updates only, so that it is the same
after a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from timonel.training.settings import Settings
from timonel.training.train_options import LearningRateRule


@dataclass(frozen=True)
class RateScaling:
    """Scaling rule of the learning rate."""

    scale: float = 1.0
    warmup: int = 0  # updates of a linear warm-up: ``n``, from 1, uses ``n / warmup`` of the rate

    @property
    def changes_nothing(self) -> bool:
        """Whether the script's own learning rate is used unchanged."""
        return self.scale == 1.0 and self.warmup <= 1

    def factor(self, updates: Any) -> Any:
        """Return the factor of the learning rate after updates, an int or an integer tensor."""
        if self.warmup <= 1:
            return self.scale
        if isinstance(updates, int):
            return self.scale * min(1.0, (updates + 1) / self.warmup)
        import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

        part = tf.cast(updates + 1, tf.float32) / float(self.warmup)
        return self.scale * tf.minimum(1.0, part)


def rule_of(settings: Settings, replicas: int) -> RateScaling:
    """Return the rule of a job with this number of replicas."""
    scales = {"none": 1.0, "linear": float(replicas), "sqrt": math.sqrt(replicas)}
    batches = settings.batches
    return RateScaling(scales[batches.scale_learning_rate], batches.learning_rate_warmup)


def describe(rule: RateScaling, name: LearningRateRule, replicas: int) -> str:
    """Describe the changes to the script's learning rate."""
    parts = []
    if name != "none":
        parts.append(f"is multiplied by {rule.scale:g} ({name}, {replicas} replicas)")
    if rule.warmup > 1:
        parts.append(f"warms up over {rule.warmup} updates")
    return f"the script's learning rate {' and '.join(parts)}"
