"""Which worker computes what, and which gradients count: plain state, no threads, no clock.

A **piece** is a part of a batch that one worker computes at once. It has a number, and whatever
happens to workers it counts exactly once: an attempt that is lost or comes too late gives its piece
back, and of two attempts at one piece the first counts.

    asynchronous    each piece is an update. A gradient whose weights are older than
                    ``max_staleness`` updates is dropped, and its piece computed again.
    synchronous     an update takes the first ``needed`` pieces that were computed on the present
                    weights. What was begun before an update and not in it is dropped at once, and
                    its piece goes to the next one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

OVERDUE_FACTOR = 3.0
"""An attempt that takes so many times as long as is usual is tried elsewhere as well."""
OVERDUE_S = 0.25
"""The least time after which that is done."""
_NEWEST = 0.2
"""What the newest duration counts in the usual one."""


@dataclass(frozen=True)
class Policy:
    """How updates are made.

    Attributes:
        needed: Gradients of an update.
        synchronous: They must all be computed on the weights that they are applied to.
        max_staleness: How many updates older the weights of a gradient may be; None: any number.
        attempts: How many attempts may run at once; None: one for each worker.
    """

    needed: int = 1
    synchronous: bool = False
    max_staleness: int | None = None
    attempts: int | None = None

    def weight(self, staleness: int) -> float:
        """Return a gradient's factor; 0 drops it.

        The rule of staleness-aware SGD (Zhang et al., arXiv:1511.05950): divide by the age. An age
        of 1 is the normal case with two workers and counts in full.
        """
        if self.max_staleness is None:
            return 1.0
        return 1.0 / max(1, staleness) if staleness <= self.max_staleness else 0.0


@dataclass(frozen=True)
class Attempt:
    """One worker at one piece.

    Attributes:
        number: Unique among all attempts.
        piece: What is computed.
        worker: By whom.
        version: The updates that the weights have seen when it began.
        since: When that was.
    """

    number: int
    piece: int
    worker: int
    version: int
    since: float


@dataclass(frozen=True)
class Gradient:
    """A gradient that counts."""

    attempt: Attempt
    staleness: int
    weight: float


@dataclass
class Tally:
    """What happened so far."""

    updates: int = 0
    dropped: int = 0
    repeated: int = 0
    lost: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    weight_sum: float = 0.0

    @property
    def staleness_mean(self) -> float:
        """The mean staleness of the gradients that were applied."""
        return self.staleness_sum / self.updates if self.updates else 0.0

    @property
    def weight_mean(self) -> float:
        """The mean weight of the gradients that were applied, from 0 to 1."""
        return self.weight_sum / self.updates if self.updates else 1.0

    def metrics(self) -> dict[str, float]:
        """Return what is reported of it, by the names of metrics."""
        return {
            "staleness_mean": self.staleness_mean,
            "staleness_max": float(self.staleness_max),
            "dropped_gradients": float(self.dropped),
        }


@dataclass
class Ledger:
    """Pieces, attempts and what came of them. Not thread-safe; time is an argument."""

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
        """Whether every piece that was added has counted."""
        return not self._open

    @property
    def unsettled(self) -> int:
        """Pieces that are in no update yet."""
        return len(self._open)

    def add(self, piece: int) -> None:
        """Add a piece to compute; numbers grow."""
        self._open.add(piece)
        heapq.heappush(self._waiting, piece)

    def take(self, worker: int, now: float) -> Attempt | None:
        """Return what a worker without an attempt is to compute now, if there is anything."""
        limit = self.policy.attempts
        if worker in self._running or (limit is not None and len(self._useful()) >= limit):
            return None
        if self.policy.synchronous and (self._is_waited_for(worker) or self._is_full()):
            return None
        bound = self.policy.max_staleness
        if bound is not None and len(self._held) > bound:
            return None  # it would be dropped: those that wait come before it
        piece = heapq.heappop(self._waiting) if self._waiting else self._overdue(now)
        if piece is None:
            return None
        self._numbers += 1
        attempt = Attempt(self._numbers, piece, worker, self.version, now)
        self._running[worker] = attempt
        return attempt

    def next_look(self, now: float) -> float | None:
        """Return in how many seconds an attempt may be overdue that is not now; None: never."""
        if self._waiting or self.usual_s is None:
            return None
        ages = [now - attempt.since for attempt in self._single()]
        return max(0.0, self._patience() - max(ages)) if ages else None

    def finish(self, attempt: Attempt, now: float) -> bool:
        """Note that an attempt's gradient is there; return whether it may count."""
        self._running.pop(attempt.worker, None)
        took_s = now - attempt.since
        usual = took_s if self.usual_s is None else self.usual_s
        self.usual_s = usual + _NEWEST * (took_s - usual)
        if attempt.piece not in self._open or self._is_held(attempt.piece):
            self.tally.repeated += 1
            return False
        # Those that wait to be applied are updates that come before this one.
        ahead = 0 if self.policy.synchronous else len(self._held)
        staleness = self.version + ahead - attempt.version
        weight = self.policy.weight(staleness)
        late = self.policy.synchronous and (staleness > 0 or self._is_full())
        if late or not weight:
            self.tally.dropped += 1
            self._give_back(attempt.piece)
            return False
        if attempt.piece in self._waiting:
            # Given back when its attempt was lost or overtaken, and computed after all.
            self._waiting.remove(attempt.piece)
            heapq.heapify(self._waiting)
        self._held.append(Gradient(attempt, staleness, weight))
        return True

    def lose(self, attempt: Attempt) -> None:
        """Note that an attempt will not be finished: its worker is gone."""
        if self._running.get(attempt.worker) == attempt:
            del self._running[attempt.worker]
            self.tally.lost += 1
            self._give_back(attempt.piece)

    def due(self) -> list[Gradient]:
        """Return the gradients of the next update if it is complete, else nothing."""
        return self._held[: self._needed()] if self._held and self._is_full() else []

    def apply(self, gradients: list[Gradient]) -> None:
        """Note that gradients that were due have been applied, together."""
        self.version += 1
        self.tally.updates += 1
        stale = max(gradient.staleness for gradient in gradients)
        self.tally.staleness_sum += stale
        self.tally.staleness_max = max(self.tally.staleness_max, stale)
        self.tally.weight_sum += sum(found.weight for found in gradients) / len(gradients)
        self.settle(gradients)
        if self.policy.synchronous:
            # What runs still can be in no update any more: its piece need not wait for it.
            for attempt in self._running.values():
                self._give_back(attempt.piece)

    def settle(self, gradients: list[Gradient]) -> None:
        """Note that pieces have counted."""
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
        """Tell whether the present update has all its gradients."""
        return len(self._held) >= self._needed()

    def _is_waited_for(self, worker: int) -> bool:
        """Tell whether a worker has done its part of the present update: more would be in vain."""
        return any(gradient.attempt.worker == worker for gradient in self._held)

    def _is_held(self, piece: int) -> bool:
        return any(gradient.attempt.piece == piece for gradient in self._held)

    def _useful(self) -> list[Attempt]:
        return [found for found in self._running.values() if found.piece in self._open]

    def _single(self) -> list[Attempt]:
        """Return the attempts at pieces that are wanted still and that nobody else is at."""
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
