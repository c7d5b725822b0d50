"""The versions below a URI, listed and downloaded in the background.

Each model has one thread that lists and one that downloads: a bucket that hangs blocks only its own
model. Both are daemons, so that not even the server's shutdown waits for a bucket.
"""

from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from timonel.serving.manager.buckets.download import fetch_version
from timonel.serving.manager.buckets.listing import BucketError, ModelBucket, is_complete
from timonel.serving.manager.plan import Candidate
from timonel.serving.manager.sources import FolderSource, VersionSource, folder_of
from timonel.serving.settings import LoadSettings
from timonel.serving.status import TRANSIENT, Code, StatusError
from timonel.storage.blobs import Blob, fingerprint
from timonel.storage.content_cache import CacheError, ContentCache, FolderLease
from timonel.storage.local_copy import cache_folder
from timonel.storage.uris import local_path

_LOG = logging.getLogger(__name__)
_FOREVER_S = 3600.0
_MIN_PAUSE_S = 0.05
_QUICK_RETRIES = 3
_QUICK_RETRY_S = 1.0


def cache_of(settings: LoadSettings) -> ContentCache:
    """Return a server's cache, by default in the user's cache folder."""
    if settings.model_cache is not None:
        return ContentCache(local_path(settings.model_cache), settings.model_cache_bytes)
    return ContentCache(cache_folder() / "models", settings.model_cache_bytes)


def source_factory(
    settings: LoadSettings, wake: Callable[[], None]
) -> Callable[[str], VersionSource]:
    """Return a function that creates the source of a base path.

    Args:
        settings: Times, and the cache.
        wake: Called from any thread when a bucket has changed.
    """
    cache = cache_of(settings)

    def create(base_path: str) -> VersionSource:
        folder = folder_of(base_path)
        if folder is not None:
            return FolderSource(folder, settings.settle_s)
        return BucketSource(base_path, cache, settings.poll_s, settings.settle_s, wake)

    return create


@dataclass(frozen=True)
class BucketVersion:
    """The last known state of a version.

    Args:
        fingerprint: The fingerprint of its objects; empty if not listed yet.
        blobs: Its objects; None if only known from the cache.
        since: Time since when it is unchanged.
        complete: Whether it may be downloaded.
    """

    fingerprint: str = ""
    blobs: tuple[Blob, ...] | None = None
    since: float = 0.0
    complete: bool = False


class VersionStates:
    """Detect which versions of a model are complete. Pure; not thread-safe.

    Args:
        settle_s: Seconds for which a version must stay unchanged, over at least two listings.
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._states: dict[int, BucketVersion] = {}

    def __getitem__(self, number: int) -> BucketVersion:
        return self._states.get(number, BucketVersion())

    def complete(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the fingerprints of those of ``numbers`` that are complete."""
        return {n: self[n].fingerprint for n in numbers if self[n].complete}

    def listed(self, number: int, blobs: tuple[Blob, ...], now: float) -> None:
        """Record a listing of a version's objects."""
        mark, before = fingerprint(blobs), self[number]
        if before.blobs is None or before.fingerprint != mark:
            self._states[number] = BucketVersion(mark, blobs, now)
            return
        complete = now - before.since >= self._settle_s and is_complete(blobs)
        self._states[number] = BucketVersion(mark, blobs, before.since, complete)

    def cached(self, number: int, mark: str) -> None:
        """Record that a version is cached while its bucket cannot be listed."""
        self._states[number] = BucketVersion(mark, complete=True)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all other versions, so that they are new if they return."""
        self._states = {n: state for n, state in self._states.items() if n in numbers}


class BucketSource(VersionSource):
    """Versions below a URI, served from a cache.

    Args:
        uri: The base path, such as ``s3://models/digits``.
        cache: The cache of downloaded versions.
        poll_s: Seconds between listings; 0 to list once.
        settle_s: Seconds for which a version must stay unchanged to be complete.
        wake: Called from another thread on changes.
    """

    def __init__(
        self,
        uri: str,
        cache: ContentCache,
        poll_s: float,
        settle_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._uri = uri
        self._cache = cache
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._wake = wake
        # Held briefly, never during a request to the bucket.
        self._lock = threading.Lock()
        self._states = VersionStates(settle_s)
        self._names: Mapping[int, str] | None = None
        self._error: BucketError | None = None
        self._interesting: tuple[int, ...] = ()
        self._enough = 0
        self._unsettled = False
        self._in_use: Counter[int] = Counter()
        self._closed = threading.Event()
        self._list_now = threading.Event()
        self._fetches: queue.SimpleQueue[tuple[Candidate, Future[FolderLease]] | None] = (
            queue.SimpleQueue()
        )
        self._saved: Mapping[int, str] = {}
        self._warnings: dict[int, str] = {}
        self._failures = 0
        for target, name in ((self._list_forever, "list"), (self._fetch_forever, "fetch")):
            threading.Thread(target=target, name=f"{name} {uri}", daemon=True).start()

    def versions(self, *, relist: bool) -> Collection[int] | None:
        """Return the available versions; see `VersionSource.versions`."""
        del relist
        with self._lock:
            if self._names is None and self._error is not None:
                raise OSError(errno.EIO, self._error.message)
            return None if self._names is None else self._names.keys()

    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of versions; see `VersionSource.look`."""
        with self._lock:
            if enough > self._enough or not set(self._interesting).issuperset(numbers):
                self._list_now.set()
            self._interesting, self._enough = tuple(numbers), enough
            states = [(number, self._states[number]) for number in numbers]
        return [
            Candidate(number, f"{self._uri}/{number}", state.fingerprint, state.complete)
            for number, state in states
        ]

    def fetch(self, candidate: Candidate) -> Future[FolderLease]:
        """Return a future of a version's folder; see `VersionSource.fetch`."""
        done: Future[FolderLease] = Future()
        self._fetches.put((candidate, done))
        return done

    def refresh(self) -> None:
        """List versions anew."""
        self._list_now.set()

    def close(self) -> None:
        """Stop listing and fetching."""
        self._closed.set()
        self._list_now.set()
        self._fetches.put(None)

    def _list_forever(self) -> None:
        bucket = ModelBucket(self._uri)
        self._saved = self._cached(bucket)
        while not self._closed.is_set():
            self._list_now.clear()
            before = self._snapshot()
            try:
                self._list(bucket)
            except BucketError as error:
                self._fail(error, bucket)
            except Exception:  # noqa: BLE001 - logged, and retried
                # The thread must survive any error of a library; it lists again.
                _LOG.exception("Cannot list %s.", self._uri)
                self._fail(BucketError(Code.INTERNAL, f"Cannot list {self._uri}"), bucket)
            if self._snapshot() != before:
                self._wake()
            self._list_now.wait(self._pause_s())

    def _list(self, bucket: ModelBucket) -> None:
        names = bucket.versions()
        with self._lock:
            if self._error is not None:
                _LOG.info("%s can be listed again.", self._uri)
            self._names, self._error, self._failures = names, None, 0
            self._states.keep(names.keys())
            interesting = [number for number in self._interesting if number in names]
            enough = self._enough
        self._unsettled = self._list_versions(bucket, names, interesting, enough)
        self._save_listing(bucket, names)

    def _list_versions(
        self, bucket: ModelBucket, names: Mapping[int, str], numbers: Sequence[int], enough: int
    ) -> bool:
        """List the objects of versions, newest first; return whether to list again soon.

        Versions in use do not change, so usually one request lists all. Of a thousand
        versions only the newest are listed, and older ones while those are incomplete.
        """
        complete, unlisted = 0, 0
        for number in numbers:
            with self._lock:
                in_use = self._in_use[number] > 0
                unlisted += self._states[number].blobs is None and not in_use
            if complete >= enough or unlisted > enough + 1:
                break
            if not in_use:
                self._list_version(bucket, names[number], number)
            with self._lock:
                complete += in_use or self._states[number].complete
        return complete < min(enough, len(numbers))

    def _list_version(self, bucket: ModelBucket, name: str, number: int) -> None:
        try:
            blobs = bucket.blobs(name)
        except BucketError as error:
            if error.code in TRANSIENT:
                raise
            # A defect of one version must not prevent serving others.
            if self._warnings.get(number) != error.message:
                _LOG.warning("%s", error.message)
            self._warnings[number] = error.message
        else:
            with self._lock:
                self._states.listed(number, blobs, time.monotonic())

    def _fail(self, error: BucketError, bucket: ModelBucket) -> None:
        known = self._names is not None
        cached = {} if known else self._cached(bucket)
        self._failures += 1
        with self._lock:
            is_new = self._error is None or self._error.message != error.message
            # A start fails with this error if nothing else can be served.
            if known or cached or error.code not in TRANSIENT or self._failures >= _QUICK_RETRIES:
                self._error = error
            if cached:
                self._names = {number: str(number) for number in cached}
                for number, mark in cached.items():
                    self._states.cached(number, mark)
        if cached:
            _LOG.warning(
                "%s; serving cached versions of the last listing: %s",
                error.message,
                ", ".join(map(str, sorted(cached))),
            )
        elif is_new:
            suffix = "; keeping the loaded versions" if known else ""
            _LOG.warning("%s%s", error.message, suffix)

    def _save_listing(self, bucket: ModelBucket, names: Mapping[int, str]) -> None:
        with self._lock:
            complete = self._states.complete(names)
        listing = {n: mark for n, mark in {**self._saved, **complete}.items() if n in names}
        if listing == self._saved:
            return
        try:
            marks = {str(n): mark for n, mark in listing.items()}
            self._cache.save_listing(self._uri, bucket.endpoint(), marks)
        except CacheError as error:
            _LOG.warning("%s", error.message)
        self._saved = listing

    def _cached(self, bucket: ModelBucket) -> dict[int, str]:
        try:
            listed = self._cache.entries(self._uri, bucket.endpoint())
        except BucketError:  # listing it will tell
            return {}
        return {int(n): mark for n, mark in listed.items()}

    def _snapshot(self) -> object:
        with self._lock:
            states = [self._states[n] for n in self._interesting]
            looks = [(state.fingerprint, state.complete) for state in states]
            return self._names, self._error is None, self._interesting, looks

    def _pause_s(self) -> float:
        pause = self._poll_s or _FOREVER_S
        if 0 < self._failures < _QUICK_RETRIES:
            return min(pause, _QUICK_RETRY_S)
        if self._unsettled and self._error is None:
            return min(pause, max(self._settle_s / 2, _MIN_PAUSE_S))
        return pause

    def _fetch_forever(self) -> None:
        bucket = ModelBucket(self._uri)
        while (item := self._fetches.get()) is not None:
            candidate, done = item
            try:
                lease = self._fetch(bucket, candidate)
            except StatusError as error:
                done.set_exception(error)
            except Exception as error:  # noqa: BLE001 - becomes the result
                _LOG.exception("Cannot download %s.", candidate.path)
                done.set_exception(StatusError(Code.INTERNAL, f"{candidate.path}: {error}"))
            else:
                done.set_result(lease)

    def _fetch(self, bucket: ModelBucket, candidate: Candidate) -> FolderLease:
        number = candidate.number
        with self._lock:
            state = self._states[number]
            name = (self._names or {}).get(number)
        if name is None or state.fingerprint != candidate.fingerprint:
            raise BucketError(Code.ABORTED, f"{candidate.path} was changed or removed.")
        try:
            lease = fetch_version(
                bucket, self._cache, number, name, state.blobs, state.fingerprint, self._closed.wait
            )
        except CacheError as error:
            message = f"{error.message[:1].upper()}{error.message[1:]}."
            raise BucketError(Code.RESOURCE_EXHAUSTED, message) from error

        def released() -> None:
            with self._lock:
                self._in_use[number] -= 1

        with self._lock:
            self._in_use[number] += 1
        lease.on_release(released)
        return lease
