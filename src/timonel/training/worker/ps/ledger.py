"""Track pieces of work per worker, and which gradients count. No threads, no clock.

A **piece** is a part of a batch that one worker computes at once. It has a number and counts
exactly once, even if workers are lost: a lost or late attempt returns its piece, and of two
attempts at one piece the first counts.

    asynchronous    each piece is an update. A gradient whose weights are older than
                    ``max_staleness`` updates is dropped, and its piece computed again.
    synchronous     an update takes the first ``needed`` pieces computed on the current weights.
                    Attempts that began before an update without joining it are dropped at once,
                    and their pieces go to the next one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

OVERDUE_FACTOR = 3.0
"""Multiple of the usual duration after which an attempt is repeated."""
OVERDUE_S = 0.25
"""Minimum duration before an attempt is repeated."""
_NEWEST = 0.2
"""Weight of the newest duration in the moving average."""


@dataclass(frozen=True)
class Policy:
    """Rules for updates."""

    needed: int = 1  # gradients per update
    synchronous: bool = False  # gradients are computed on the weights that they are applied to
    max_staleness: int | None = None  # maximum age of a gradient's weights in updates
    attempts: int | None = None  # maximum number of concurrent attempts; None for one per worker

    def weight(self, staleness: int) -> float:
        """Return a gradient's factor; 0 drops it."""
        # The rule of staleness-aware SGD (Zhang et al., arXiv:1511.05950): divide by the age. An
        # age of 1 is the normal case with two workers and counts in full.
        if self.max_staleness is None:
            return 1.0
        return 1.0 / max(1, staleness) if staleness <= self.max_staleness else 0.0


@dataclass(frozen=True)
class Attempt:
    """A worker's attempt at a piece."""

    number: int  # unique among all attempts
    piece: int
    worker: int
    version: int  # number of updates in the weights when the attempt began
    since: float  # start time in seconds


@dataclass(frozen=True)
class Gradient:
    """A gradient that counts."""

    attempt: Attempt
    staleness: int
    weight: float


@dataclass
class Tally:
    """Statistics of updates and gradients."""

    updates: int = 0
    dropped: int = 0
    repeated: int = 0
    lost: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    weight_sum: float = 0.0

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the applied gradients."""
        return self.staleness_sum / self.updates if self.updates else 0.0

    @property
    def weight_mean(self) -> float:
        """Mean weight of the applied gradients, from 0 to 1."""
        return self.weight_sum / self.updates if self.updates else 1.0

    def metrics(self) -> dict[str, float]:
        """Return the statistics as metrics by name."""
        return {
            "staleness_mean": self.staleness_mean,
            "staleness_max": float(self.staleness_max),
            "dropped_gradients": float(self.dropped),
        }


@dataclass
class Ledger:
    """Pieces, attempts and their results. Not thread-safe; time is an argument."""

    policy: Policy = field(default_factory=Policy)
    version: int = 0
    tally: Tally = field(default_factory=Tally)
    usual_s: float | None = None
    _numbers: int = 0
    _waiting: list[int] = field(default_factory=list)
    _running: dict[int, Attempt] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)
    _held: list[Gradient] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        """Whether every added piece has counted."""
        return not self._open

    @property
    def unsettled(self) -> int:
        """Number of pieces that have not counted yet."""
        return len(self._open)

    def add(self, piece: int) -> None:
        """Add a piece; numbers must increase."""
        self._open.add(piece)
        heapq.heappush(self._waiting, piece)

    def take(self, worker: int, now: float) -> Attempt | None:
        """Assign a piece to an idle worker; None if it should wait."""
        limit = self.policy.attempts
        if worker in self._running or (limit is not None and len(self._useful()) >= limit):
            return None
        if self.policy.synchronous and (self._is_waited_for(worker) or self._is_full()):
            return None
        bound = self.policy.max_staleness
        if bound is not None and len(self._held) > bound:
            return None  # it would be dropped, as the held gradients come first
        piece = heapq.heappop(self._waiting) if self._waiting else self._overdue(now)
        if piece is None:
            return None
        self._numbers += 1
        attempt = Attempt(self._numbers, piece, worker, self.version, now)
        self._running[worker] = attempt
        return attempt

    def next_look(self, now: float) -> float | None:
        """Return the seconds until an attempt may be overdue, if any."""
        if self._waiting or self.usual_s is None:
            return None
        ages = [now - attempt.since for attempt in self._single()]
        return max(0.0, self._patience() - max(ages)) if ages else None

    def finish(self, attempt: Attempt, now: float) -> bool:
        """Record a finished attempt; return whether its gradient may count."""
        self._running.pop(attempt.worker, None)
        took_s = now - attempt.since
        usual = took_s if self.usual_s is None else self.usual_s
        self.usual_s = usual + _NEWEST * (took_s - usual)
        if attempt.piece not in self._open or self._is_held(attempt.piece):
            self.tally.repeated += 1
            return False
        # Gradients held for application are updates that precede this one.
        ahead = 0 if self.policy.synchronous else len(self._held)
        staleness = self.version + ahead - attempt.version
        weight = self.policy.weight(staleness)
        late = self.policy.synchronous and (staleness > 0 or self._is_full())
        if late or not weight:
            self.tally.dropped += 1
            self._give_back(attempt.piece)
            return False
        if attempt.piece in self._waiting:
            # Returned when its attempt was lost or overtaken, but computed after all.
            self._waiting.remove(attempt.piece)
            heapq.heapify(self._waiting)
        self._held.append(Gradient(attempt, staleness, weight))
        return True

    def lose(self, attempt: Attempt) -> None:
        """Record that an attempt's worker was lost."""
        if self._running.get(attempt.worker) == attempt:
            del self._running[attempt.worker]
            self.tally.lost += 1
            self._give_back(attempt.piece)

    def due(self) -> list[Gradient]:
        """Return the next update's gradients, or none if it is incomplete."""
        return self._held[: self._needed()] if self._held and self._is_full() else []

    def apply(self, gradients: list[Gradient]) -> None:
        """Record that the due gradients have been applied together."""
        self.version += 1
        self.tally.updates += 1
        stale = max(gradient.staleness for gradient in gradients)
        self.tally.staleness_sum += stale
        self.tally.staleness_max = max(self.tally.staleness_max, stale)
        self.tally.weight_sum += sum(found.weight for found in gradients) / len(gradients)
        self.settle(gradients)
        if self.policy.synchronous:
            # Attempts still running can join no update any more, so their pieces need not wait.
            for attempt in self._running.values():
                self._give_back(attempt.piece)

    def settle(self, gradients: list[Gradient]) -> None:
        """Record that the gradients' pieces have counted."""
        for gradient in gradients:
            self._held.remove(gradient)
            self._open.discard(gradient.attempt.piece)

    def _give_back(self, piece: int) -> None:
        fresh = any(
            attempt.piece == piece
            and not (self.policy.synchronous and attempt.version < self.version)
            for attempt in self._running.values()
        )
        wanted = piece in self._open and not self._is_held(piece)
        if wanted and not fresh and piece not in self._waiting:
            heapq.heappush(self._waiting, piece)

    def _needed(self) -> int:
        return min(self.policy.needed, len(self._open))

    def _is_full(self) -> bool:
        """Tell whether the current update has all its gradients."""
        return len(self._held) >= self._needed()

    def _is_waited_for(self, worker: int) -> bool:
        """Tell whether a worker has done its part of the current update."""
        return any(gradient.attempt.worker == worker for gradient in self._held)

    def _is_held(self, piece: int) -> bool:
        return any(gradient.attempt.piece == piece for gradient in self._held)

    def _useful(self) -> list[Attempt]:
        return [found for found in self._running.values() if found.piece in self._open]

    def _single(self) -> list[Attempt]:
        """Return the only attempts at pieces that are still needed."""
        pieces = [attempt.piece for attempt in self._running.values()]
        return [
            attempt
            for attempt in self._useful()
            if pieces.count(attempt.piece) == 1 and not self._is_held(attempt.piece)
        ]

    def _overdue(self, now: float) -> int | None:
        if self.usual_s is None:
            return None
        late = [found for found in self._single() if now - found.since >= self._patience()]
        return min(late, key=lambda found: found.since).piece if late else None

    def _patience(self) -> float:
        return max(OVERDUE_S, OVERDUE_FACTOR * (self.usual_s or 0.0))
