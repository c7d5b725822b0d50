"""Periodic pace reports of each worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timonel.tracking import RunWriter
from timonel.tracking.pace import PACE
from timonel.training.worker.inputs.fit_data import batch_size_of
from timonel.training.worker.plugin import FitPlugin
from timonel.training.worker.reports.pace import INTERVAL_S, StragglerWarning


@dataclass
class _Sums:
    begun: float
    pieces: int = 0
    work_s: float = 0.0


class WorkerPaceReporter(FitPlugin):
    """Reports each worker's pace to the run. The workers' threads call `note`."""

    def __init__(
        self,
        run: RunWriter,
        *,
        parts: int,
        loop: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.batch_size: int | None = None
        self._loop = loop
        self._run = run
        self._parts = parts
        self._clock = clock
        self._lock = threading.Lock()
        self._sums: dict[int, _Sums] = {}
        self._slowest = StragglerWarning(run)

    def install(self) -> None:
        """Observe the chief's loop."""
        self._loop.observe = self.note

    def fit_begins(self, model: Any, arguments: dict[str, Any]) -> None:  # noqa: ARG002
        """Note the call's batch size."""
        self.batch_size = batch_size_of(arguments)

    def note(self, worker: int, took_s: float) -> None:
        """Record the duration of a worker's part in seconds; report if due."""
        with self._lock:
            now = self._clock()
            sums = self._sums.setdefault(worker, _Sums(now - took_s))
            sums.pieces += 1
            sums.work_s += took_s
            if now - sums.begun >= INTERVAL_S:
                self._sums[worker] = _Sums(now)
                self._tell(worker, sums, now - sums.begun)

    def _tell(self, worker: int, sums: _Sums, seconds: float) -> None:
        fields = {"steps": sums.pieces, "step_ms": round(sums.work_s / sums.pieces * 1000, 3)}
        if self.batch_size is not None:
            rate = sums.pieces * self.batch_size / self._parts / seconds
            fields["examples_per_s"] = round(rate, 3)
        self._run.event(PACE, task=f"worker-{worker}", **fields)
        self._slowest.look()
