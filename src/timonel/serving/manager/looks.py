"""Look at the sources of models in daemon threads: at folders in one, one after another.

A look at a folder takes less than a millisecond, but never ends if the network file system hangs.
Such a look keeps its thread, and another thread continues with the looks behind it. A look at a
bucket takes longer, and has a thread of its own.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from timonel.serving.manager.plan import Candidate, Rule, Tracked, of_interest
from timonel.serving.manager.sources import VersionSource
from timonel.serving.settings import Latest

_HUNG_S = 1.0
"""Time after which a look no longer holds up others."""

Found = tuple[Collection[int], list[Candidate]]
"""All versions of a source, and the state of those of interest."""


@dataclass(eq=False)
class Look:
    """A look at a model's source.

    Args:
        source: The source; None for a model that is no longer configured.
        relist: Whether to look for new and removed versions; otherwise only known ones are checked.
        rule: The rules for choosing versions.
        tracked: The records of all versions at its start.
        began: The time of its start.
        is_obsolete: Whether the configuration has changed since.
        found: What it found.
    """

    source: VersionSource | None
    relist: bool
    rule: Rule
    tracked: Mapping[int, Tracked]
    began: float
    is_obsolete: bool = False
    found: Future[Found] = field(default_factory=Future)

    def run(self) -> None:
        """Look at the source; blocks while its file system hangs."""
        try:
            self.found.set_result(self._read())
        except BaseException as error:  # noqa: BLE001 - handled in the manager's thread
            self.found.set_exception(error)

    def _read(self) -> Found:
        if self.source is None:
            return (), []
        numbers = self.source.versions(relist=self.relist)
        interesting = of_interest(self.rule, numbers, self.tracked)
        return numbers, self.source.look(interesting, self._enough(interesting))

    def _enough(self, interesting: Sequence[int]) -> int:
        """Return how many complete versions suffice, so that no others are checked."""
        if not isinstance(self.rule.policy, Latest):
            return len(interesting)
        records = (self.tracked.get(number) for number in interesting)
        failed = sum(record is not None and record.error is not None for record in records)
        return self.rule.policy.count + len(self.rule.keep) + failed


class Looks:
    """Waiting looks, and the thread that takes them. Owned by the manager's thread."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._looker: _Looker | None = None

    def submit(self, look: Look, ended: Callable[[], None]) -> None:
        """Take a look in a thread, which then calls ``ended``."""

        def work() -> None:
            look.run()
            ended()

        if look.source is not None and look.source.is_remote:
            threading.Thread(target=work, name="look", daemon=True).start()
        else:
            self._waiting.put(work)

    def advance(self, now: float) -> None:
        """Start a thread if work waits for the first one, or for one that hangs."""
        if self.next_change() <= now:
            self._replace()
            self._looker = _Looker(self._waiting)
            self._looker.start()

    def next_change(self) -> float:
        """Return the time at which `advance` has work."""
        if self._waiting.empty():
            return math.inf
        return self._looker.hangs_at if self._looker is not None else -math.inf

    def close(self) -> None:
        """End the thread, unless it hangs."""
        self._replace()
        self._waiting.put(lambda: None)

    def _replace(self) -> None:
        if self._looker is not None:
            self._looker.is_replaced = True


class _Looker(threading.Thread):
    def __init__(self, waiting: queue.SimpleQueue[Callable[[], None]]) -> None:
        super().__init__(name="look", daemon=True)
        self._waiting = waiting
        self.is_replaced = False
        self.hangs_at = math.inf

    def run(self) -> None:
        while not self.is_replaced:
            work = self._waiting.get()
            self.hangs_at = time.monotonic() + _HUNG_S
            work()
            self.hangs_at = math.inf
