"""Record traffic history once a second while the page is viewed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from timonel.serving.console.page.history import History
from timonel.serving.telemetry.monitor import Monitor

PERIOD_S: Final = 1.0
LINGER_S: Final = 600.0
"""Seconds of sampling after the last view, for pages that are reopened."""
_LOG = logging.getLogger(__name__)


class Sampler:
    """Record a history while it is viewed.

    For one event loop; the sampling task ends with it.

    Args:
        monitor: Source of the counts.
        clock: Monotonic seconds.
    """

    def __init__(self, monitor: Monitor, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = History(monitor)
        self._clock = clock
        self._looked = 0.0
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Note a view of the history; the first one starts sampling."""
        self._looked = self._clock()
        if self._task is None or self._task.done():
            self.history.begin(self._clock())
            self._task = asyncio.get_running_loop().create_task(self._sample())

    async def _sample(self) -> None:
        while self._clock() - self._looked < LINGER_S:
            await asyncio.sleep(PERIOD_S)
            try:
                # Takes at most a millisecond in the event loop; another thread would delay it more.
                self.history.take(self._clock(), time.time())
            except Exception:  # noqa: BLE001 - logged; the next view restarts sampling
                _LOG.exception("the page's plots end here")
                return
