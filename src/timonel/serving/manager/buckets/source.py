"""The versions below a URI, as a thread of their own sees them.

One thread lists, another downloads, for each model: a bucket that hangs holds up its own model
and nothing else. Both are daemons, so that not even a server's end waits for a bucket.
"""

from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future

from timonel.serving.manager.buckets.cache import ModelCache
from timonel.serving.manager.buckets.completeness import Settling
from timonel.serving.manager.buckets.fetching import Order, bring
from timonel.serving.manager.buckets.store import Bucket, BucketError
from timonel.serving.manager.plan import Candidate
from timonel.serving.manager.sources import Held, Source
from timonel.serving.status import TRANSIENT, Code, StatusError

_LOG = logging.getLogger(__name__)
_FOR_EVER_S = 3600.0
_SHORTEST_S = 0.05
_PATIENCE = 3
_AGAIN_S = 1.0


class BucketSource(Source):
    """Versions below a URI, served from a cache.

    Args:
        uri: The base path, such as ``s3://models/digits``.
        cache: Where versions are kept.
        poll_s: Time between two looks for versions that came or went; 0 for one look.
        settle_s: How long a version must stay the same until it is whole.
        wake: Called, from another thread, when there is something new.
    """

    def __init__(
        self, uri: str, cache: ModelCache, poll_s: float, settle_s: float, wake: Callable[[], None]
    ) -> None:
        self._uri = uri
        self._cache = cache
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._wake = wake
        # Held for moments, never while a bucket is asked.
        self._lock = threading.Lock()
        self._settling = Settling(settle_s)
        self._names: Mapping[int, str] | None = None
        self._error: BucketError | None = None
        self._wanted: tuple[int, ...] = ()
        self._enough = 0
        self._unsettled = False
        self._in_use: Counter[int] = Counter()
        self._stop = threading.Event()
        self._look_now = threading.Event()
        self._orders: queue.SimpleQueue[tuple[Candidate, Future[Held]] | None] = queue.SimpleQueue()
        self._remembered: Mapping[int, str] = {}
        self._complaints: dict[int, str] = {}
        self._failures = 0
        for target, name in ((self._look_again_and_again, "list"), (self._fetch_all, "fetch")):
            threading.Thread(target=target, name=f"{name} {uri}", daemon=True).start()

    def versions(self, *, relist: bool) -> Collection[int] | None:
        """Return the versions that the bucket told of last; it is asked elsewhere."""
        del relist
        with self._lock:
            if self._names is None and self._error is not None:
                raise OSError(errno.EIO, self._error.message)
            return None if self._names is None else self._names.keys()

    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of the versions ``numbers``, and look closer at those from now on."""
        with self._lock:
            if enough > self._enough or not set(self._wanted).issuperset(numbers):
                self._look_now.set()
            self._wanted, self._enough = tuple(numbers), enough
            seen = [(number, self._settling.seen(number)) for number in numbers]
        return [
            Candidate(number, f"{self._uri}/{number}", each.fingerprint, each.complete)
            for number, each in seen
        ]

    def fetch(self, candidate: Candidate) -> Future[Held]:
        """Begin to download a version, unless it is in the cache."""
        done: Future[Held] = Future()
        self._orders.put((candidate, done))
        return done

    def refresh(self) -> None:
        """Ask the bucket once more."""
        self._look_now.set()

    def close(self) -> None:
        """Ask no more. What is being downloaded ends, and fails."""
        self._stop.set()
        self._look_now.set()
        self._orders.put(None)

    def _look_again_and_again(self) -> None:
        bucket = Bucket(self._uri)
        self._remembered = self._cache.entries(self._uri)
        while not self._stop.is_set():
            self._look_now.clear()
            before = self._state()
            try:
                self._look(bucket)
            except BucketError as error:
                self._fail(error)
            except Exception:  # noqa: BLE001 - logged, and tried again
                # The thread must outlive whatever a library does; it looks again.
                _LOG.exception("%s cannot be looked at", self._uri)
                self._fail(BucketError(Code.INTERNAL, f"cannot list {self._uri}"))
            if self._state() != before:
                self._wake()
            self._look_now.wait(self._pause_s())

    def _look(self, bucket: Bucket) -> None:
        names = bucket.versions()
        with self._lock:
            if self._error is not None:
                _LOG.info("%s can be listed again", self._uri)
            self._names, self._error, self._failures = names, None, 0
            self._settling.keep(names.keys())
            wanted = [number for number in self._wanted if number in names]
            enough = self._enough
        self._unsettled = self._look_into(bucket, names, wanted, enough)
        self._remember(names)

    def _look_into(
        self, bucket: Bucket, names: Mapping[int, str], wanted: Sequence[int], enough: int
    ) -> bool:
        """List the objects of versions, newest first; return whether there may soon be more.

        What is in use stays as it is, so in the long run a look is one request; and of a thousand
        versions only the newest are looked into, and older ones while those are not complete.
        """
        complete, fresh = 0, 0
        for number in wanted:
            with self._lock:
                in_use = self._in_use[number] > 0
                fresh += self._settling.seen(number).blobs is None and not in_use
            if complete >= enough or fresh > enough + 1:
                break
            if not in_use:
                self._look_into_one(bucket, names[number], number)
            with self._lock:
                complete += in_use or self._settling.seen(number).complete
        return complete < min(enough, len(wanted))

    def _look_into_one(self, bucket: Bucket, name: str, number: int) -> None:
        try:
            blobs = bucket.blobs(name)
        except BucketError as error:
            if error.code in TRANSIENT:
                raise
            # What is wrong with one version is no reason to serve no other.
            if self._complaints.get(number) != error.message:
                _LOG.warning("%s", error.message)
            self._complaints[number] = error.message
        else:
            with self._lock:
                self._settling.saw(number, blobs, time.monotonic())

    def _fail(self, error: BucketError) -> None:
        known = self._names is not None
        cached = {} if known else self._cache.entries(self._uri)
        self._failures += 1
        with self._lock:
            news = self._error is None or self._error.message != error.message
            # A start fails with this, if there is nothing else to serve.
            if known or cached or error.code not in TRANSIENT or self._failures >= _PATIENCE:
                self._error = error
            if cached:
                self._names = {number: str(number) for number in cached}
                for number, mark in cached.items():
                    self._settling.is_cached(number, mark)
        if cached:
            _LOG.warning(
                "%s; serving from the cache what it told of last: %s",
                error.message,
                ", ".join(map(str, sorted(cached))),
            )
        elif news:
            _LOG.warning("%s%s", error.message, "; keeping what is loaded" if known else "")

    def _remember(self, names: Mapping[int, str]) -> None:
        """Write down what the bucket told, for a start without it."""
        with self._lock:
            fresh = self._settling.complete(names)
        told = {**self._remembered, **fresh}
        kept = {number: mark for number, mark in told.items() if number in names}
        if kept == self._remembered:
            return
        try:
            self._cache.remember(self._uri, kept)
        except StatusError as error:
            _LOG.warning("%s", error.message)
        self._remembered = kept

    def _state(self) -> object:
        with self._lock:
            seen = [(n, self._settling.seen(n)) for n in self._wanted]
            told = [(n, each.fingerprint, each.complete) for n, each in seen]
            return self._names, self._error is None, told

    def _pause_s(self) -> float:
        pause = self._poll_s or _FOR_EVER_S
        if 0 < self._failures < _PATIENCE:
            return min(pause, _AGAIN_S)
        waits = self._unsettled and self._error is None
        return min(pause, max(self._settle_s / 2, _SHORTEST_S)) if waits else pause

    def _fetch_all(self) -> None:
        bucket = Bucket(self._uri)
        while (order := self._orders.get()) is not None:
            candidate, done = order
            try:
                held = bring(self._order(candidate), bucket, self._cache, self._stop.wait)
            except StatusError as error:
                done.set_exception(error)
            except Exception as error:  # noqa: BLE001 - becomes the answer
                _LOG.exception("%s cannot be downloaded", candidate.path)
                done.set_exception(StatusError(Code.INTERNAL, f"{candidate.path}: {error}"))
            else:
                done.set_result(self._counted(candidate.number, held))

    def _order(self, candidate: Candidate) -> Order:
        with self._lock:
            seen = self._settling.seen(candidate.number)
            name = (self._names or {}).get(candidate.number)
        if name is None or seen.fingerprint != candidate.fingerprint:
            raise BucketError(Code.ABORTED, f"{candidate.path} was changed or removed meanwhile")
        return Order(candidate.number, name, seen.fingerprint, seen.blobs)

    def _counted(self, number: int, held: Held) -> Held:
        def let_go() -> None:
            with self._lock:
                self._in_use[number] -= 1

        with self._lock:
            self._in_use[number] += 1
        held.when_released(let_go)
        return held
