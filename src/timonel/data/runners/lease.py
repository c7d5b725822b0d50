"""Lease of a remote job: workers stop soon after their client is gone.

The client renews it while it waits, and gives it up when it stops. Workers that see none, or the
same for a minute, stop. So a job does not outlive a killed client, whatever the runner.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator

from timonel.data.runners.exchange import Exchange
from timonel.errors import TimonelError

RENEWAL_S = 5.0
EXPIRY_S = 60.0
_CHECK_S = 1.0


class LeaseLostError(TimonelError):
    """The client of a remote job is gone."""


@contextlib.contextmanager
def held(exchange: Exchange) -> Iterator[Callable[[], None]]:
    """Hold a lease during the block; yield a function that gives it up earlier."""
    stop = threading.Event()

    def renew() -> None:
        for number in itertools.count(1):
            if stop.wait(RENEWAL_S):
                return
            with contextlib.suppress(TimonelError):
                exchange.renew(number)

    exchange.renew(0)
    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()

    def release() -> None:
        stop.set()
        thread.join()
        exchange.release()

    try:
        yield release
    finally:
        release()


class LeaseWatch:
    """A worker's view of a lease. Compares no clocks of different machines."""

    def __init__(self, exchange: Exchange, clock: Callable[[], float] = time.monotonic) -> None:
        self._exchange = exchange
        self._clock = clock
        self._renewed = self._checked = clock() - _CHECK_S
        self._seen: bytes | None = None

    def check(self) -> None:
        """Check the lease, at most once a second unless it is lost."""
        now = self._clock()
        if now - self._checked < _CHECK_S:
            return
        seen = self._exchange.lease()
        if seen is None:
            raise LeaseLostError("the conversion was stopped")
        if seen != self._seen:
            self._seen, self._renewed = seen, now
        elif now - self._renewed > EXPIRY_S:
            raise LeaseLostError("the client of the conversion is gone")
        self._checked = now
