"""The traffic of all workers, for the plots of the page that one of them shows."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from timonel.serving.monitoring.monitor import RECENT, Recent, Traffic
from timonel.serving.monitoring.series import RequestKey
from timonel.serving.status import Code
from timonel.serving.workers.channel import Channel


class GroupTraffic:
    """What the leader has answered last; asks anew at each look, and never waits.

    So the figures are those of the look before, which is a second ago. For one event loop.

    Args:
        channel: Leads to the leader.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._asked: Future[Any] | None = None
        self._began = time.time()
        self._begun: dict[str, Traffic] | None = None
        self._traffic: dict[str, Traffic] = {}
        self._recent: collections.deque[Recent] = collections.deque(maxlen=RECENT)
        self._look: Callable[[], None] = lambda: None

    def tell(self) -> None:
        """Tell the other workers that somebody looks."""
        self._channel.tell("look")

    def listen(self, look: Callable[[], None]) -> None:
        """Have somebody called when another worker has told that."""
        self._look = look

    def told(self) -> None:
        """Note that another worker has told it."""
        self._look()

    def traffic(self) -> Mapping[str, Traffic]:
        """Return what was answered and computed since the first look, by model."""
        asked = self._asked
        if asked is not None and asked.done():
            if asked.exception() is None:
                traffic, recent = asked.result()
                now = {name: Traffic(*each) for name, each in traffic.items()}
                self._begun = now if self._begun is None else self._begun
                self._traffic = {name: _since(self._begun, name, now[name]) for name in now}
                self._recent.extend(read_recent(recent))
            self._asked = asked = None
        if asked is None:
            since = self._recent[-1].ended if self._recent else self._began
            self._asked = self._channel.ask("traffic", since)
        return self._traffic

    def recent(self) -> list[Recent]:
        """Return the last requests, oldest first."""
        return list(self._recent)


def _since(before: Mapping[str, Traffic], name: str, now: Traffic) -> Traffic:
    return Traffic(*(a - b for a, b in zip(now, before.get(name, Traffic()), strict=True)))


def recent_fields(recent: Iterable[Recent], since: float) -> list[Any]:
    """Return requests that ended after a moment as JSON's values."""
    return [
        [each.ended, [*each.key[:-1], int(each.key.code)], each.seconds, each.stages, each.rows]
        for each in recent
        if each.ended > since
    ]


def read_recent(content: Sequence[Any]) -> list[Recent]:
    """Return requests out of JSON's values, oldest first."""
    read = [
        Recent(ended, RequestKey._make((*key, Code(code))), seconds, tuple(stages), rows)
        for ended, (*key, code), seconds, stages, rows in content
    ]
    return sorted(read, key=lambda each: each.ended)
