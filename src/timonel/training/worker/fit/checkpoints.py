"""A job's checkpoints, in the layout of `timonel.training.checkpoints`.

Folders are created atomically, and the digest is verified before use. Every task takes part in
reading the state; only the chief writes it, in a background thread.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from timonel.errors import CorruptError, NotFoundError
from timonel.storage import join
from timonel.storage.atomic import sweep, unwritable
from timonel.training import checkpoints as layout
from timonel.training.evaluations import EvaluationRecords
from timonel.training.option_values import parse_best
from timonel.training.settings import CheckpointPolicy
from timonel.training.worker.state import checkpoint_format
from timonel.training.worker.state.checkpoint_format import Checkpoint, FitState, Progress
from timonel.training.worker.state.checkpoint_writer import BackgroundWriter
from timonel.training.worker.state.copies import Copies

__all__ = ["Checkpoint", "Checkpoints", "FitState", "Progress"]

logger = logging.getLogger(__name__)

_LEAVING_S = 5.0
"""Time limit for pending copies when a process exits early."""

Published = Callable[[Path, Progress], None]


@dataclass(eq=False)
class Checkpoints:
    """The checkpoints of one job. Used only by the training thread."""

    root: Path
    _: KW_ONLY
    writes: bool  # as only one task does
    progress: Path  # the file from which the engine reads the training progress
    policy: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    records: EvaluationRecords | None = None
    _progress_file: int | None = None
    _writer: BackgroundWriter = field(default_factory=BackgroundWriter)

    def __post_init__(self) -> None:
        self._best = parse_best(self.policy.keep_best)
        self._copies = Copies(self.policy.checkpoint_uri)

    def save(self, fit: int, state: FitState, published: Published | None = None) -> Path | None:
        """Save a ``fit`` call's state; return the folder if this task writes.

        Returns before the state is written; errors are raised by the next call, or by `wait`.
        Arrays of the state must not be changed afterwards. Another thread calls ``published`` once
        the checkpoint is complete.
        """
        self.note_steps(state.progress.steps, resting=state.progress.finished)
        if not self.writes:
            return None
        target = layout.fit_folder(self.root, fit) / state.progress.checkpoint_name
        self._writer.submit(lambda: self._publish(fit, target, state, published))
        return target

    def note_steps(self, steps: int, *, resting: bool = False) -> None:
        """Report progress to the engine, which detects crashes that repeat at the same step."""
        # Written in place at each step: opening the file each time would take thirty times as long.
        # ``resting``: the next phase has no steps, as validation or the end of the script.
        if self._progress_file is None:
            self._progress_file = os.open(self.progress, os.O_WRONLY | os.O_CREAT, 0o644)
        text = f"{steps} resting" if resting else str(steps)
        os.pwrite(self._progress_file, f"{text:<31}\n".encode(), 0)

    def wait(self, *, leaving: bool = False) -> None:
        """Wait until the last checkpoint is written and copied; for seconds only if ``leaving``."""
        self._writer.wait()
        self._copies.wait(_LEAVING_S if leaving else None)

    def drain(self) -> None:
        """Wait as `wait` does, but suppress errors, for use while another error propagates."""
        self._writer.drain()
        self._copies.wait(_LEAVING_S)

    def latest(self, fit: int) -> Checkpoint | None:
        """Return the newest valid checkpoint of a call, or None."""
        # One of a newer release is a FormatError: training from scratch would discard it.
        for folder in layout.newest_first(self.root, fit):
            try:
                return checkpoint_format.read(folder)
            except (CorruptError, NotFoundError) as error:
                logger.warning("ignoring the checkpoint %s: %s", folder, error)
        return None

    def at(self, fit: int, name: str) -> Checkpoint:
        """Return a checkpoint by its folder's name."""
        return checkpoint_format.read(layout.fit_folder(self.root, fit) / name)

    def newest_folder(self, fit: int) -> Path | None:
        """Return the folder of a call's newest checkpoint, if any."""
        return next(iter(layout.newest_first(self.root, fit)), None)

    def best_folder(self, fit: int) -> Path | None:
        """Return the folder of the best checkpoint, if one is kept."""
        return layout.best_folder(self.root, fit, self._best, self.records)

    def beside(self, name: str) -> Checkpoints:
        """Return another set of checkpoints of this job, in a subfolder."""
        uri = self.policy.checkpoint_uri
        copies = None if uri is None else join(uri, name)
        return Checkpoints(
            self.root / name,
            writes=self.writes,
            progress=self.progress,
            policy=self.policy.model_copy(update={"checkpoint_uri": copies}),
        )

    def tidy(self) -> None:
        """Remove partial checkpoints of a killed chief."""
        if self.writes:
            for folder in self.root.glob("fit-*"):
                sweep(folder)

    def fill(self) -> None:
        """Fetch the copied checkpoints if this machine has none."""
        if self.policy.checkpoint_uri is not None and not any(self.root.glob("**/fit-*/*")):
            self._copies.fetch(self.root)

    def _publish(
        self, fit: int, target: Path, state: FitState, published: Published | None
    ) -> None:
        is_spoilt = _holds_nan(state.variables)
        if is_spoilt and not state.progress.finished:
            logger.warning("%s is not saved: some weights are NaN", target.name)
            return
        metric = None
        if self._best is not None and not state.progress.step:
            value = self._best.value(state.progress.history)
            metric = None if value is None else (self._best.metric, value)
        try:
            checkpoint_format.write(target, state, metric)
        except OSError as error:
            raise unwritable(target, error) from None
        if published is not None:
            published(target, state.progress)
        if not is_spoilt:
            self._thin_out(fit)
        self._copies.add(layout.newest_first(self.root, fit))

    def _thin_out(self, fit: int) -> None:
        best = self.best_folder(fit)
        held = self.records.read(fit).held if self.records is not None else frozenset()
        old = [
            folder
            for folder in layout.newest_first(self.root, fit)[self.policy.keep_checkpoints :]
            if folder != best and folder.name not in held
        ]
        for folder in old:
            shutil.rmtree(folder, ignore_errors=True)


def _holds_nan(variables: Sequence[Any]) -> bool:
    return any(
        array.dtype.kind == "f" and np.isnan(np.min(array, initial=0)) for array in variables
    )
