"""The steps of a ``fit`` call, numbered from 1 through all its epochs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timonel.errors import SpecError


@dataclass(frozen=True)
class Steps:
    """The steps to profile, counted from 1 through all epochs of the call; both are included."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """What the profile is called."""
        return f"steps_{self.first}_to_{self.last}"


def parse_steps(text: str) -> Steps:
    """Return the steps that ``10`` or ``10:20`` names.

    Raises:
        SpecError: They are none.
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
        initial_epoch: The epoch with which the call, as the script made it, begins.
        epoch: The present one.
        before: Steps of the epochs before it; None where that is not known.
        last: The number of the last step that was taken.
        has_begun: Whether there was a step.
    """

    initial_epoch: int
    epoch: int = 0
    before: int | None = None
    last: int = 0
    has_begun: bool = False

    def begin(self, batch: int, params: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Return the steps of all epochs and those that are done, as far as they are known."""
        self.has_begun = True
        steps, earlier = params.get("steps"), self.epoch - self.initial_epoch
        if self.before is None and (steps is not None or not earlier):
            self.before = earlier * (steps or 0)
        total = None if steps is None else steps * (params["epochs"] - self.initial_epoch)
        return total, None if self.before is None else self.before + batch

    def at(self, batch: int) -> int:
        """Return the number of the step of a batch, which Keras counts from 0."""
        return (self.before or 0) + batch + 1
