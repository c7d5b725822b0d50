"""Keep a job's folder the same in all pods, in a thread of its own.

The thread works in the order in which it is asked. What is asked for after changes is done after
they are here; what is asked for after `scan` is done after its changes were sent.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from timonel.engines.kubernetes.files.changes import Change, Index
from timonel.engines.kubernetes.files.folder import SharedFolder
from timonel.errors import TimonelError

SCAN_S = 0.5
_RETRY_S = 2.0
_SHOWN_AFTER_S = 10.0
"""Seconds for which work must fail before its error is shown to the user."""

_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)


class Failing:
    """The last error of work that is repeated. One thread sets it, any may read it."""

    def __init__(self) -> None:
        self._since: tuple[float, str] | None = None

    def failed(self, error: TimonelError) -> None:
        """Note that the work failed."""
        begun = time.monotonic() if self._since is None else self._since[0]
        self._since = (begun, error.message)

    def succeeded(self) -> None:
        """Note that the work succeeded."""
        self._since = None

    @property
    def error(self) -> str | None:
        """The last error, if the work has failed for a while."""
        since = self._since
        if since is None or time.monotonic() - since[0] < _SHOWN_AFTER_S:
            return None
        return since[1]


def _unchanged(change: Change) -> Change:
    return change


class FileThread:
    """Scans and changes a job's folder; calls back in the main thread.

    Args:
        folder: The job's folder.
        tick: Called in the thread twice a second.

    Attributes:
        failing: Work that must succeed before the thread goes on.
    """

    def __init__(
        self,
        folder: SharedFolder,
        send: Callable[[list[Change]], None],
        *,
        number: Callable[[Change], Change] = _unchanged,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._send = send
        self._number = number
        self._tick = tick
        self.failing = Failing()
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="files", daemon=True)
        self._has_index = False

    def start(self) -> None:
        """Start the thread; it scans once `reset` was called."""
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are results."""
        return self._wake

    def deliver(self) -> None:
        """Call the callbacks of finished work; for the main thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._results:
            self._results.popleft()()

    def reset(self, index: Index) -> None:
        """Make the folder equal to an index, and scan it from now on."""

        def work() -> None:
            self._pass_on(self.persist(lambda: self._folder.reset(index)))
            self._has_index = True

        self._asked.put(work)

    def apply(self, changes: Iterable[Change]) -> None:
        """Make others' changes here."""

        def work() -> None:
            for change in changes:
                self._pass_on(self.persist(functools.partial(self._folder.apply, change)))

        self._asked.put(work)

    def scan(self) -> None:
        """Scan once the programs here have ended, which leave no line incomplete."""
        self._asked.put(lambda: self._scan(to_end=True))

    def then(self, done: Callable[[], None]) -> None:
        """Call ``done`` in the main thread once all that was asked for before is done."""
        self._asked.put(lambda: self._return(done))

    def ask(self, work: Callable[[], _Result], done: Callable[[_Result], None]) -> None:
        """Run ``work`` in the thread, in its turn, and ``done`` in the main thread."""

        def run() -> None:
            result = work()
            self._return(lambda: done(result))

        self._asked.put(run)

    def close(self) -> None:
        """Finish what was asked for, and end the thread."""
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        scan_at = 0.0
        while True:
            try:
                work = self._asked.get(timeout=max(0.0, scan_at - time.monotonic()))
            except queue.Empty:
                work = self._on_tick
                scan_at = time.monotonic() + SCAN_S
            if work is None:
                return
            try:
                work()
            except Exception:
                logger.exception("work on the job's folder failed")

    def _on_tick(self) -> None:
        self._scan()
        self._tick()

    def _scan(self, *, to_end: bool = False) -> None:
        if self._has_index:
            self._pass_on(self.persist(lambda: self._folder.scan(to_end=to_end)))

    def _pass_on(self, changes: list[Change]) -> None:
        if changes:
            numbered = [self._number(change) for change in changes]
            self._return(lambda: self._send(numbered))

    def _return(self, result: Callable[[], None]) -> None:
        self._results.append(result)
        os.eventfd_write(self._wake, 1)

    def persist(self, work: Callable[[], _Result]) -> _Result:
        """Repeat work in the thread while the bucket is away: nothing may be skipped."""
        while True:
            try:
                result = work()
            except TimonelError as error:
                logger.warning("%s; trying again", error)
                self.failing.failed(error)
                time.sleep(_RETRY_S)
            else:
                self.failing.succeeded()
                return result
