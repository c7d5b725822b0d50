"""Detect NaN losses: checked about once a second, located to the step."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

from timonel.errors import TimonelError

_MOST = 10_000
"""Maximum number of losses kept between two checks.

They stay on the device, unread.
"""


class Losses:
    """The losses of the latest steps of one ``fit`` call.

    Args:
        ends_job: Whether a loss that is NaN or infinite ends the job.
    """

    def __init__(self, *, ends_job: bool = False) -> None:
        self._ends_job = ends_job
        self._latest: deque[tuple[int, int, Any]] = deque(maxlen=_MOST)
        self._found: tuple[int, int] | None = None

    def note(self, epoch: int, step: int, loss: Any) -> None:
        """Record the loss after ``step`` steps of an epoch; does not block.

        Epochs count from 0.
        """
        if self._ends_job and loss is not None:
            self._latest.append((epoch, step, loss))

    def must_fail(self) -> bool:
        """Tell whether a NaN or infinite loss ends the job.

        Waits for the last loss.
        """
        if self._latest and _is_no_number(self._latest[-1][2]):
            first = next(found for found in self._latest if _is_no_number(found[2]))
            self._found = first[0], first[1]
        self._latest.clear()
        return self._found is not None

    def fail(self, newest: Path | None) -> NoReturn:
        """Raise the error that ends the job.

        Args:
            newest: The last checkpoint.

        Raises:
            TimonelError: Always.
        """
        where = (
            "" if self._found is None else f" at epoch {self._found[0] + 1}, step {self._found[1]}"
        )
        kept = (
            "there is no checkpoint yet" if newest is None else f"the last checkpoint is {newest}"
        )
        raise TimonelError(
            f"expected a loss that is a number, got NaN{where}; {kept}",
            hint="take a smaller learning rate, clip gradients, or look at the data of that step",
        )


def _is_no_number(loss: Any) -> bool:
    return not math.isfinite(float(loss))
