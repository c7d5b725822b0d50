"""Number a ``fit`` call's steps from 1 through all epochs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timonel.errors import SpecError


@dataclass(frozen=True)
class Steps:
    """Range of steps to profile, both ends inclusive.

    Steps count from 1 through all epochs of the call.
    """

    first: int
    last: int

    @property
    def name(self) -> str:
        """Name of the profile."""
        return f"steps_{self.first}_to_{self.last}"


def parse_steps(text: str) -> Steps:
    """Parse steps of the form ``10`` or ``10:20``.

    Raises:
        SpecError: The range is invalid.
    """
    first, _, last = text.partition(":")
    steps = Steps(int(first), int(last or first))
    if not 1 <= steps.first <= steps.last:
        raise SpecError(
            f"expected steps to profile from 1 on, the first before the last, got {text!r}",
            hint="as in --profile 10:20",
        )
    return steps


@dataclass
class StepCount:
    """Numbers the steps of a call through its epochs.

    Attributes:
        initial_epoch: Initial epoch of the call, as the script made it.
        epoch: Current epoch.
        before: Steps of earlier epochs; None if unknown.
        last: Number of the last completed step.
        has_begun: Whether a step has begun.
    """

    initial_epoch: int
    epoch: int = 0
    before: int | None = None
    last: int = 0
    has_begun: bool = False

    def begin(self, batch: int, params: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Return the total and the completed number of steps; None where unknown."""
        self.has_begun = True
        steps, earlier = params.get("steps"), self.epoch - self.initial_epoch
        if self.before is None and (steps is not None or not earlier):
            self.before = earlier * (steps or 0)
        total = None if steps is None else steps * (params["epochs"] - self.initial_epoch)
        return total, None if self.before is None else self.before + batch

    def at(self, batch: int) -> int:
        """Return the step number of a batch, which Keras counts from 0."""
        return (self.before or 0) + batch + 1
