"""Where in its training data a ``fit`` call stands, and how it comes there again.

A feed is told how many steps are done; by itself it notices when Keras begins another pass over
the data. Validation data are other datasets, or the same one without a feed: they move nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timonel.data.session import Stream


class Feed:
    """The training data of a call that only can be begun anew with each epoch.

    Attributes:
        can_seek: Whether a call can go on within an epoch.
        note: What is said of it in the log.
    """

    can_seek = False
    note = "its data can be begun anew only: it is saved at the ends of epochs"

    def epoch_begins(self, epoch: int) -> None:
        """Note that Keras begins an epoch."""

    def step_begins(self, trained: int) -> None:
        """Note that ``trained`` steps of the call are done and the next one begins."""

    def steps_end(self) -> None:
        """Note that the steps of an epoch are done: who reads now does not train."""

    def position(self, trained: int) -> dict[str, Any]:
        """Return where the data stand after ``trained`` steps, as plain data."""
        del trained
        return {}

    def seek(self, position: Mapping[str, Any], trained: int, *, within: bool) -> int:
        """Go to where the data stood; return the steps of the present pass that are done.

        Args:
            position: What `position` has returned.
            trained: Steps of the call that are done.
            within: Whether an epoch was broken off, and not just ended.
        """
        del position, trained, within
        return 0


class StreamFeed(Feed):
    """Data whose order is a function of seed and epoch: every step can be gone to at once.

    Args:
        stream: The position of the next pass.
        note: What is said of it.
        steps: Steps of a pass; by default those of the stream.
    """

    can_seek = True

    def __init__(self, stream: Stream, note: str, steps: int | None = None) -> None:
        self.note = note
        self._steps = steps or stream.schedule.steps
        self._stream = stream
        self._armed: int | None = None
        self._pass: tuple[int, int] | None = None
        self._sought = False
        stream.listener = self._begins

    def epoch_begins(self, epoch: int) -> None:
        """Let a pass that begins in this epoch have the epoch's own order."""
        sought, self._sought = self._sought, False
        if not sought:
            self._stream.seek(epoch)

    def step_begins(self, trained: int) -> None:
        """Note that who reads from now on trains."""
        self._armed = trained

    def steps_end(self) -> None:
        """Note that who reads from now on validates."""
        self._armed = None

    def position(self, trained: int) -> dict[str, Any]:
        """Return epoch and step of the order that is read."""
        if self._pass is None:
            return {}  # nothing was read yet: the next epoch has its own order
        epoch, begun = self._pass
        return {"epoch": epoch, "step": trained - begun}

    def seek(self, position: Mapping[str, Any], trained: int, *, within: bool) -> int:
        """Let the next pass go on in the order that was read."""
        if not position:
            return 0
        epoch, step = position["epoch"], position["step"]
        if not within and step >= self._steps:
            return 0  # the pass ended with the epoch: the next one has its own order
        self._stream.seek(epoch, step)
        self._sought = True
        self._pass = epoch, trained - step
        return int(step)

    def _begins(self, epoch: int, step: int) -> None:
        if self._armed is not None:
            self._pass = epoch, self._armed - step
