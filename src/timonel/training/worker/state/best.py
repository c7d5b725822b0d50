"""Criterion of the best checkpoint: a metric and a direction. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.errors import SpecError

_LARGER_IS_BETTER = ("acc", "auc", "fmeasure", "precision", "recall", "f1", "iou", "r2")


@dataclass(frozen=True)
class Best:
    """Criterion of the best checkpoint.

    Attributes:
        metric: Name in the epoch's logs, such as ``val_loss``.
        larger: Whether larger is better.
    """

    metric: str
    larger: bool

    def value(self, history: Mapping[str, Sequence[Any]]) -> float | None:
        """Return the metric of the last epoch.

        None if it is missing or not a finite number.
        """
        values = history.get(self.metric)
        if not values or not isinstance(values[-1], int | float) or not math.isfinite(values[-1]):
            return None
        return float(values[-1])

    def is_better(self, value: float, than: float) -> bool:
        """Whether ``value`` is better than ``than``."""
        return value > than if self.larger else value < than


def parse_best(text: str | None) -> Best | None:
    """Parse a criterion such as ``val_loss`` or ``max:val_f1``.

    Raises:
        SpecError: The text is invalid.
    """
    if text is None:
        return None
    mode, colon, name = text.rpartition(":")
    if not name.isidentifier() or (colon and mode not in {"min", "max"}):
        raise SpecError(
            f"expected keep_best as a metric such as val_loss or max:val_f1, got {text!r}",
            hint="the name is one that Keras shows, the prefix min: or max:",
        )
    return Best(name, mode == "max" if colon else any(part in name for part in _LARGER_IS_BETTER))
