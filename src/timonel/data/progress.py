"""Progress of work in shards, and the limit on rejected records."""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from timonel.data.journal import Journal, Outcome
from timonel.data.manifest import Rejected
from timonel.data.rejected import too_many
from timonel.data.runners.base import Report
from timonel.errors import DataError

Progress = Callable[[int, int], None]
INTERVAL_S = 0.1


class _Plan(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def records(self) -> int: ...


_Item = TypeVar("_Item")
_AnyPlan = TypeVar("_AnyPlan", bound=_Plan)


def reported(items: Iterable[_Item], show: Progress | None, total: int = 0) -> Iterator[_Item]:
    """Yield items; report their number and the total (0 if unknown) ten times a second at most."""
    due = time.monotonic() + INTERVAL_S
    for number, item in enumerate(items, start=1):
        if show is not None and time.monotonic() >= due:
            due = time.monotonic() + INTERVAL_S
            show(number, total)
        yield item


class ShardProgress(Report):
    """Count records, report them at most ten times a second, and limit rejected ones.

    The limit is a fraction; records that were rejected before are in no shard.
    """

    fault: ClassVar[str]
    """What is wrong with rejected records, after their number."""

    def __init__(
        self, found: int, limit: float, show: Progress | None, rejected: Sequence[Rejected] = ()
    ) -> None:
        self.records = 0
        self.rejected = list(rejected)
        self._found = found
        self._total = found + len(rejected)
        self._limit = limit
        self._show = show
        self._done = 0
        self._next = 0.0
        self._lock = threading.Lock()

    def resume(self, plans: Sequence[_AnyPlan], journal: Journal[Any]) -> list[_AnyPlan]:
        """Count the shards that are finished; return the plans of the others."""
        rest = []
        for plan in plans:
            if journal.is_finished(plan.name):
                self.tick(plan.records)
                self.finished(journal.outcome(plan.name))
            else:
                rest.append(plan)
        return rest

    @abc.abstractmethod
    def write_rejected(self) -> Path:
        """List the rejected records in a file; return its path."""

    @abc.abstractmethod
    def cure(self, first: Rejected) -> str:
        """Return what the user can do about rejected records."""

    def tick(self, records: int = 1) -> None:
        """Count records that are done."""
        with self._lock:
            # More than all after a shard that was written twice.
            self._done = min(self._done + records, self._found)
            now = time.monotonic()
            if self._show is not None and (now >= self._next or self._done == self._found):
                self._next = now + INTERVAL_S
                self._show(self._done, self._found)

    def finished(self, outcome: Outcome) -> None:
        """Take the outcome of a shard."""
        with self._lock:
            self.records += outcome.records
            self.rejected += outcome.rejected
            self.check()

    def check(self) -> None:
        """Check the number of rejected records so far."""
        if len(self.rejected) > self._limit * self._total:
            raise self.too_many(f"above the limit of {self._limit:.2%}")

    def too_many(self, why: str) -> DataError:
        """List the rejected records; return the error."""
        path = self.write_rejected()
        return too_many(
            self.rejected,
            self.records,
            self._total,
            fault=self.fault,
            why=why,
            hint=f"see {path}; {self.cure(self.rejected[0])}",
        )
