"""Lease of a remote job: workers stop soon after their client is gone.

The client touches a file in the conversion's folder while it waits, and removes it when it stops.
Workers that see the file missing, or unchanged for a minute, stop. So a job does not outlive a
killed client, whatever the runner.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from timonel.errors import TimonelError
from timonel.storage.atomic import unwritable

RENEWAL_S = 5.0
EXPIRY_S = 60.0
_CHECK_S = 1.0


class LeaseLostError(TimonelError):
    """The client of a remote job is gone."""


@contextlib.contextmanager
def held(path: Path) -> Iterator[Callable[[], None]]:
    """Hold a lease during the block; yield a function that gives it up earlier.

    Raises:
        InputError: The file cannot be written.
    """
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(RENEWAL_S):
            with contextlib.suppress(OSError):
                path.touch()

    try:
        path.touch()
    except OSError as error:
        raise unwritable(path, error) from error
    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()

    def release() -> None:
        stop.set()
        thread.join()
        path.unlink(missing_ok=True)

    try:
        yield release
    finally:
        release()


class LeaseWatch:
    """A worker's view of a lease. Compares no clocks of different machines.

    Args:
        path: The client's file.
        clock: Monotonic time in seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._renewed = self._checked = clock() - _CHECK_S
        self._seen: int | None = None

    def check(self) -> None:
        """Check the lease, at most once a second.

        Raises:
            LeaseLostError: The client is gone.
        """
        now = self._clock()
        if now - self._checked < _CHECK_S:
            return
        self._checked = now
        try:
            seen = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            raise LeaseLostError("the conversion was stopped") from None
        if seen != self._seen:
            self._seen, self._renewed = seen, now
        elif now - self._renewed > EXPIRY_S:
            raise LeaseLostError("the client of the conversion is gone")
