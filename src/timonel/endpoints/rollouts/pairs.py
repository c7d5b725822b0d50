"""Match answers of two versions to the same requests. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Iterable

from timonel.endpoints.rollouts.counts import Counts
from timonel.serving.telemetry.answers import Answer, agree

_WAIT_S = 60.0
_MAX_WAITING = 20_000


class Pairs:
    """Matches answers of two versions by request."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, int, Answer]] = {}
        """Time, version and answer by name, in the order of arrival."""

    def add(self, now: float, version: int, answers: Iterable[Answer]) -> Counts:
        """Add answers of a version; return the completed pairs, and how many of them agree.

        Args:
            now: The time in seconds.
        """
        pairs = agreements = 0
        for answer in answers:
            before = self._waiting.get(answer.name)
            if before is None:
                self._waiting[answer.name] = now, version, answer
            elif before[1] != version:
                # The second copy of an answer that was computed twice, as a replica was killed,
                # finds no partner and expires.
                del self._waiting[answer.name]
                found = agree(before[2], answer)
                pairs += found is not None
                agreements += found is True
        self._forget(now)
        return Counts(pairs=pairs, agreements=agreements)

    def _forget(self, now: float) -> None:
        for name, (since, _, _) in list(self._waiting.items()):
            if now - since <= _WAIT_S and len(self._waiting) <= _MAX_WAITING:
                return
            del self._waiting[name]
