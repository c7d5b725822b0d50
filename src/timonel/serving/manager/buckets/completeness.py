"""Tells a version in a bucket that is complete from one that is being uploaded. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from timonel.serving.manager.buckets.listing import Blob, fingerprint, what_is_missing


@dataclass(frozen=True)
class Seen:
    """What is known of a version.

    Args:
        fingerprint: Of its objects; empty when they were not listed yet.
        blobs: Its objects; none when only the cache knows it.
        since: When it began to look like this.
        complete: Whether it may be downloaded.
    """

    fingerprint: str = ""
    blobs: tuple[Blob, ...] | None = None
    since: float = 0.0
    complete: bool = False


UNSEEN = Seen()


class Settling:
    """What the last looks at the versions of one model have told. Not thread-safe.

    Args:
        settle_s: How long a version must stay the same, over at least two looks.
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._seen: dict[int, Seen] = {}

    def seen(self, number: int) -> Seen:
        """Return what is known of a version."""
        return self._seen.get(number, UNSEEN)

    def complete(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the fingerprints of those of ``numbers`` that are complete."""
        found = {number: self.seen(number) for number in numbers}
        return {number: seen.fingerprint for number, seen in found.items() if seen.complete}

    def saw(self, number: int, blobs: tuple[Blob, ...], now: float) -> None:
        """Note a look at a version's objects."""
        mark, before = fingerprint(blobs), self.seen(number)
        if before.blobs is None or before.fingerprint != mark:
            self._seen[number] = Seen(mark, blobs, now)
            return
        whole = now - before.since >= self._settle_s and what_is_missing(blobs) is None
        self._seen[number] = Seen(mark, blobs, before.since, complete=whole)

    def is_cached(self, number: int, mark: str) -> None:
        """Note that a version is in the cache, whose bucket tells nothing."""
        self._seen[number] = Seen(mark, complete=True)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all other versions: those that come back are new."""
        self._seen = {number: seen for number, seen in self._seen.items() if number in numbers}
