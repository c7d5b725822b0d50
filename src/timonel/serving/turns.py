"""Work that is done once for a turn of an event loop, instead of once for each of its requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

Work = Callable[[], None]
_TRIED = 8
_LEFT = 256


class TurnBatching:
    """Whether to wait for the end of a turn, by how much came in those before. Pure.

    Requests over HTTP/1.1 come several to a turn, as each connection has its own; those of gRPC
    come one by one, and would only wait. After some turns in which one came alone nothing is
    gathered for a while. Of two threads one may be forgotten: it is a statistic.
    """

    def __init__(self) -> None:
        self._alone = 0
        self._left = 0

    def pays(self) -> bool:
        """Return whether what comes now should wait for the end of the turn."""
        if self._left:
            self._left -= 1
            return False
        return True

    def ended(self, count: int) -> None:
        """Learn from a turn in which so many were gathered."""
        self._alone = 0 if count > 1 else self._alone + 1
        if self._alone >= _TRIED:
            self._alone, self._left = 0, _LEFT


def at_end_of_turn(work: Work) -> bool:
    """Have something done once, at the end of this turn of the event loop in this thread.

    It is done even if the loop is closed before. A loop that is stopped does it when it goes on.

    Args:
        work: What is told apart from other work by being equal; must not raise.

    Returns:
        False if no loop runs in this thread: nothing will be done.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    turn: _Turn | None = getattr(_kept, "turn", None)
    if turn is None or turn.loop is not loop:
        turn = _kept.turn = _Turn(loop)
    turn.add(work)
    return True


class _Turn:
    """What is due at the end of a loop's turn. Used by the loop's thread alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due: dict[Work, None] = {}

    def add(self, work: Work) -> None:
        if not self._due:
            self.loop.call_soon(_End(self._due))
            # Only now: a loop that is closing has refused to do it.
        self._due[work] = None


class _End:
    """Does what is due when it is called; or, as its loop is closed without that, dropped.

    Args:
        due: What to do; emptied.
    """

    def __init__(self, due: dict[Work, None]) -> None:
        self._due = due

    def __call__(self) -> None:
        due = tuple(self._due)
        # First: what is added from now on is of the next turn.
        self._due.clear()
        for work in due:
            work()

    def __del__(self) -> None:
        self()


_kept = threading.local()
