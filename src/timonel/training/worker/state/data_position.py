"""Position of a ``fit`` call in its training data.

A feed is told how many steps are done, and detects by itself when Keras begins another pass over
the data. Validation uses other datasets, or the same one while the feed is off: it does not move
the position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timonel.data.load_registry import Stream

NOT_SAVED = "state that is not saved, so that a resumed job will differ"


class Feed:
    """Training data that can only restart with each epoch."""

    lost: Sequence[str] = ()  # state of the data that cannot be saved, or restored
    validation: Feed | None = None  # the validation data, if their passes must be counted
    can_seek = False
    note = "its data can be begun anew only: it is saved at the ends of epochs"
    _armed: int | None = None  # steps of the call before the next one; None in validation

    def epoch_begins(self, epoch: int) -> None:
        """Record that Keras begins an epoch."""

    def step_begins(self, trained: int) -> None:
        """Record that the next step begins, after ``trained`` steps of the call."""
        self._armed = trained

    def steps_end(self) -> None:
        """Record the end of an epoch's steps: later reads are not training."""
        self._armed = None

    def position(self, trained: int) -> dict[str, Any]:
        """Return the position after ``trained`` steps, as plain data."""
        del trained
        return {}

    def seek(self, position: Mapping[str, Any], trained: int, *, within: bool) -> int:
        """Restore a position within an epoch, or at its end; return steps done of its pass."""
        del position, trained, within
        return 0

    def restore(self, position: Mapping[str, Any], *, is_done: bool = False) -> None:
        """Restore the data's own state; ``is_done``: as before the validation of the epoch."""

    def leave_epoch(self) -> None:
        """Do what follows the checkpoint of an epoch, before the next one."""

    def seek_validation(self, position: Mapping[str, Any] | None, *, within: bool) -> None:
        """Restore the position in the validation data; a broken-off pass begins again."""
        if self.validation is not None and position:
            self.validation.seek_end({**position, "pass": position.get("pass", 0) - within})

    def seek_end(self, position: Mapping[str, Any]) -> None:
        """Restore what a finished call has left for another on the same data."""
        del position


class StreamFeed(Feed):
    """Data ordered by seed and epoch, with immediate access to every step."""

    can_seek = True

    def __init__(self, stream: Stream, note: str, steps: int | None = None) -> None:
        self.note = note
        self._steps = steps or stream.schedule.steps
        self._stream = stream
        self._pass: tuple[int, int] | None = None
        self._sought = False
        stream.listener = self._begins

    def epoch_begins(self, epoch: int) -> None:
        """Use this epoch's order for a pass that begins in it."""
        sought, self._sought = self._sought, False
        if not sought:
            self._stream.seek(epoch)

    def position(self, trained: int) -> dict[str, Any]:
        """Return epoch and step in the current order."""
        if self._pass is None:
            return {}  # nothing was read yet: the next epoch has its own order
        epoch, begun = self._pass
        return {"epoch": epoch, "step": trained - begun}

    def seek(self, position: Mapping[str, Any], trained: int, *, within: bool) -> int:
        """Continue the saved order in the next pass."""
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
