"""Periodic pace reports of each worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
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


@dataclass(eq=False)
class WorkerPaceReporter(FitPlugin):
    """Reports each worker's pace to the run. The workers' threads call `note`."""

    run: RunWriter
    _: KW_ONLY
    parts: int
    loop: Any = None
    clock: Callable[[], float] = time.monotonic
    batch_size: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sums: dict[int, _Sums] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._slowest = StragglerWarning(self.run)

    def install(self) -> None:
        """Observe the chief's loop."""
        self.loop.observe = self.note

    def fit_begins(self, model: Any, arguments: dict[str, Any]) -> None:  # noqa: ARG002
        """Note the call's batch size."""
        self.batch_size = batch_size_of(arguments)

    def note(self, worker: int, took_s: float) -> None:
        """Record the duration of a worker's part in seconds; report if due."""
        with self._lock:
            now = self.clock()
            sums = self._sums.setdefault(worker, _Sums(now - took_s))
            sums.pieces += 1
            sums.work_s += took_s
            if now - sums.begun >= INTERVAL_S:
                self._sums[worker] = _Sums(now)
                self._tell(worker, sums, now - sums.begun)

    def _tell(self, worker: int, sums: _Sums, seconds: float) -> None:
        fields = {"steps": sums.pieces, "step_ms": round(sums.work_s / sums.pieces * 1000, 3)}
        if self.batch_size is not None:
            rate = sums.pieces * self.batch_size / self.parts / seconds
            fields["examples_per_s"] = round(rate, 3)
        self.run.event(PACE, task=f"worker-{worker}", **fields)
        self._slowest.look()
