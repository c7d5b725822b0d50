"""Takes a point of the history each second, for as long as somebody looks."""

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
"""For how long points are taken after the last look, so that a page that comes back has them."""
_LOG = logging.getLogger(__name__)


class Sampler:
    """Keeps a history. For one event loop; its task ends with that.

    Args:
        monitor: Where the figures come from.
        clock: Monotonic seconds.
    """

    def __init__(self, monitor: Monitor, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = History(monitor)
        self._clock = clock
        self._looked = 0.0
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Note that somebody looks at the history; the first look begins it."""
        self._looked = self._clock()
        if self._task is None or self._task.done():
            self.history.begin(self._clock())
            self._task = asyncio.get_running_loop().create_task(self._sample())

    async def _sample(self) -> None:
        while self._clock() - self._looked < LINGER_S:
            await asyncio.sleep(PERIOD_S)
            try:
                # A millisecond or less, in the event loop: another thread would hold up more.
                self.history.take(self._clock(), time.time())
            except Exception:  # noqa: BLE001 - told in the log; the next look begins anew
                _LOG.exception("the page's plots end here")
                return
