"""Dispatch pieces of work from the chief's thread to the workers' threads.

The coordinator has a thread for each worker. Each runs `Dispatcher.serve`, which takes attempts
from the ledger until the dispatcher is closed. When a worker is lost, its thread gets an error, the
attempt is returned at once, and the coordinator calls `serve` again when the worker is back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from timonel.training.worker.private import ps_variables
from timonel.training.worker.ps.ledger import Attempt, Gradient, Ledger

_CHECK_S = 0.25
"""Interval at which the waiting chief checks for errors of the coordinator."""

Compute = Callable[[int], Any]
"""Computes a piece for an attempt's number, on the calling thread's worker."""
Observe = Callable[[int, float], object]
"""Receives a worker's number and seconds, on that worker's thread."""


@dataclass(frozen=True)
class Counted:
    """The gradient and result of an attempt that counts."""

    gradient: Gradient
    result: Any


@dataclass(eq=False)
class Dispatcher:
    """Dispatches pieces of its ledger to workers, and observes their durations. Thread-safe."""

    ledger: Ledger
    worker: Callable[[], int] = ps_variables.worker_index
    clock: Callable[[], float] = time.monotonic
    observe: Observe = lambda *_: None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _work: dict[int, tuple[Compute, bool]] = field(default_factory=dict)
    _results: dict[int, Any] = field(default_factory=dict)
    _uncounted: list[int] = field(default_factory=list)
    _pieces: int = 0
    _is_open: bool = True

    def add(self, compute: Compute, *, leaves: bool = False) -> int:
        """Add a piece; return its number. An uncounted attempt ``leaves`` data to discard."""
        with self._changed:
            self._pieces += 1
            self._work[self._pieces] = compute, leaves
            self.ledger.add(self._pieces)
            self._changed.notify_all()
            return self._pieces

    def serve(self) -> None:
        """Compute pieces until the dispatcher is closed; called by each worker's thread."""
        worker = self.worker()
        while (attempt := self._next(worker)) is not None:
            compute, leaves = self._work_of(attempt)
            try:
                result = compute(attempt.number)
            except BaseException:
                self._lost(attempt)
                raise
            self._finished(attempt, result, leaves=leaves)
            if result is not None:
                self.observe(worker, self.clock() - attempt.since)

    def wait(self, check: Callable[[], object]) -> list[Counted]:
        """Wait for the gradients of the next update; ``check`` raises errors of the workers."""
        while True:
            with self._changed:
                due = self.ledger.due()
                if due:
                    return [Counted(found, self._results[found.attempt.number]) for found in due]
                self._changed.wait(_CHECK_S)
            check()

    def counted(self, found: list[Counted], *, as_update: bool) -> None:
        """Record that gradients were applied together, or that their results were counted."""
        gradients = [each.gradient for each in found]
        with self._changed:
            if as_update:
                self.ledger.apply(gradients)
            else:
                self.ledger.settle(gradients)
            for gradient in gradients:
                del self._results[gradient.attempt.number]
                del self._work[gradient.attempt.piece]
            self._changed.notify_all()

    def take_uncounted(self) -> list[int]:
        """Return new attempts that staged data but did not count."""
        with self._changed:
            found, self._uncounted = self._uncounted, []
        return found

    def close(self) -> None:
        """Stop the workers' threads."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def _next(self, worker: int) -> Attempt | None:
        with self._changed:
            while self._is_open:
                now = self.clock()
                attempt = self.ledger.take(worker, now)
                if attempt is not None:
                    return attempt
                self._changed.wait(self.ledger.next_look(now))
        return None

    def _work_of(self, attempt: Attempt) -> tuple[Compute, bool]:
        with self._changed:
            # Another attempt has completed the piece: nothing is left to compute.
            return self._work.get(attempt.piece, (lambda _: None, False))

    def _finished(self, attempt: Attempt, result: Any, *, leaves: bool) -> None:
        with self._changed:
            if self.ledger.finish(attempt, self.clock()):
                self._results[attempt.number] = result
            elif leaves:
                self._uncounted.append(attempt.number)
            self._changed.notify_all()

    def _lost(self, attempt: Attempt) -> None:
        with self._changed:
            self.ledger.lose(attempt)
            self._changed.notify_all()
