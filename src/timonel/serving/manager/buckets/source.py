"""The versions below a URI, served from a cache."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.serving.manager.buckets.download import fetch_version
from timonel.serving.manager.buckets.listing import (
    BucketError,
    bucket_errors,
    is_complete,
    list_versions,
)
from timonel.serving.manager.plan import Candidate
from timonel.serving.manager.sources import (
    FolderSource,
    Unchanged,
    VersionSource,
    folder_of,
    read_aliases,
)
from timonel.serving.settings.models import LoadSettings
from timonel.serving.status import TRANSIENT, Code
from timonel.storage.aliases import Aliases
from timonel.storage.blobs import Blob, fingerprint
from timonel.storage.content_cache import CacheError, ContentCache, FolderLease
from timonel.storage.filesystems import endpoint
from timonel.storage.local_copy import cache_folder
from timonel.storage.object_store import ObjectStore

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 3.0
"""Time for which requests are repeated that something waits for."""


def source_factory(settings: LoadSettings) -> Callable[[str], VersionSource]:
    """Return a function that creates the source of a base path."""
    folder = settings.model_cache or cache_folder() / "models"
    cache = ContentCache(Path(folder), settings.model_cache_size)

    def create(base_path: str) -> VersionSource:
        folder = folder_of(base_path)
        if folder is not None:
            return FolderSource(folder, settings.settle_s)
        return BucketSource(base_path, cache, settings.settle_s)

    return create


@dataclass(frozen=True)
class BucketVersion:
    """The last known state of a version; ``blobs`` is None if only the cache has it."""

    fingerprint: str = ""
    blobs: tuple[Blob, ...] | None = None
    complete: bool = False


_UNKNOWN = BucketVersion()


class BucketSource(VersionSource):
    """Versions below a URI, served from a cache."""

    def __init__(self, uri: str, cache: ContentCache, settle_s: float) -> None:
        self._store = ObjectStore(uri, patience_s=0)
        self._patient = ObjectStore(uri, patience_s=_PATIENCE_S)
        self._cache = cache
        self._versions: dict[int, BucketVersion] = {}
        self._unchanged = Unchanged(settle_s)
        self._names: Mapping[int, str] | None = None
        self._is_listed = False
        self._aliases = Aliases(uri, patience_s=0)
        self._known_aliases: Mapping[str, int] = {}
        self._has_aliases = False
        self._problem: str | None = None
        self._saved: Mapping[int, str] | None = None
        """The listing in the cache; None until it is read."""
        self._warnings: dict[int, str] = {}
        self._in_use: Counter[int] = Counter()
        self._lock = threading.Lock()
        """Of `_in_use`."""
        self._fetching = threading.Lock()
        """Downloads of one model follow one another: each uses all its bandwidth."""
        self._closed = threading.Event()

    def versions(self, *, relist: bool) -> Collection[int]:
        """Return the available versions; see `VersionSource.versions`."""
        if relist or not self._is_listed:
            self._is_listed = True
            is_known = self._names is not None or self._listing()
            try:
                store = self._store if is_known else self._patient
                names, self._has_aliases = list_versions(store)
            except BucketError as error:
                self._fail(error)
            else:
                self._names = names
                self._versions = {n: each for n, each in self._versions.items() if n in names}
                self._unchanged.keep(names.keys())
        if self._names is None:
            raise OSError(errno.EIO, self._problem)
        return self._names.keys()

    def aliases(self) -> Mapping[str, int]:
        """Return the versions by alias; see `VersionSource.aliases`."""
        # Those before, while the bucket fails.
        if self._has_aliases and self._is_listed:
            self._known_aliases = read_aliases(self._aliases)
        return self._known_aliases if self._has_aliases else {}

    def look(self, numbers: Sequence[int], enough: int) -> list[Candidate]:
        """Return the state of versions; see `VersionSource.look`."""
        if self._is_listed:
            try:
                self._list_objects(numbers, enough)
            except BucketError as error:
                self._fail(error)
            else:
                if self._problem is not None:
                    _LOG.info("%s can be listed again.", self._store.uri)
                self._problem = None
                self._save_listing()
        states = ((number, self._versions.get(number, _UNKNOWN)) for number in numbers)
        return [
            Candidate(number, f"{self._store.uri}/{number}", state.fingerprint, state.complete)
            for number, state in states
        ]

    def fetch(self, candidate: Candidate) -> FolderLease:
        """Return a version's folder in the cache; see `VersionSource.fetch`."""
        number = candidate.number
        state, name = self._versions.get(number, _UNKNOWN), (self._names or {}).get(number)
        if name is None or state.fingerprint != candidate.fingerprint:
            raise BucketError(Code.ABORTED, f"{candidate.path} was changed or removed.")
        with self._fetching, bucket_errors():
            lease = fetch_version(
                self._patient,
                self._cache,
                number,
                name,
                state.blobs,
                state.fingerprint,
                self._closed.wait,
            )
        self._count(number, 1)
        lease.on_release(lambda: self._count(number, -1))
        return lease

    def refresh(self) -> None:
        """List versions anew."""
        self._is_listed = False

    def close(self) -> None:
        """Stop fetching."""
        self._closed.set()

    def _count(self, number: int, users: int) -> None:
        with self._lock:
            self._in_use[number] += users

    def _list_objects(self, numbers: Sequence[int], enough: int) -> None:
        """List the objects of versions, newest first.

        Versions in use do not change, so usually one request lists all. Of a thousand
        versions only the newest are listed, and older ones while those are incomplete.
        """
        complete, unlisted = 0, 0
        for number in numbers:
            in_use = self._in_use[number] > 0
            unlisted += self._versions.get(number, _UNKNOWN).blobs is None and not in_use
            if complete >= enough or unlisted > enough + 1:
                return
            if not in_use:
                self._list_version(number)
            complete += in_use or self._versions.get(number, _UNKNOWN).complete

    def _list_version(self, number: int) -> None:
        assert self._names is not None, "versions are listed before their objects"
        try:
            with bucket_errors():
                blobs = tuple(self._store.find(self._names[number]).values())
        except BucketError as error:
            if error.code in TRANSIENT:
                raise
            # A defect of one version must not prevent serving others.
            if self._warnings.get(number) != error.message:
                _LOG.warning("%s", error.message)
            self._warnings[number] = error.message
        else:
            mark = fingerprint(blobs)
            settled = self._unchanged.is_settled(number, mark, time.monotonic())
            self._versions[number] = BucketVersion(mark, blobs, settled and is_complete(blobs))

    def _fail(self, error: BucketError) -> None:
        """Keep what is known while the bucket fails; at first, what the cache has."""
        self._is_listed = False
        consequence = "keeping the loaded versions"
        if self._names is None and (cached := self._listing()):
            self._names = {number: str(number) for number in cached}
            for number, mark in cached.items():
                self._versions[number] = BucketVersion(mark, complete=True)
            listed = ", ".join(map(str, sorted(cached)))
            consequence = f"serving cached versions of the last listing: {listed}"
        if self._names is not None and self._problem != error.message:
            _LOG.warning("%s; %s", error.message, consequence)
        self._problem = error.message

    def _listing(self) -> Mapping[int, str]:
        """Return the fingerprints of cached versions, as last listed."""
        if self._saved is None:
            try:
                with bucket_errors():
                    found = self._cache.entries(self._store.uri, endpoint(self._store.uri))
            except BucketError:  # listing it will tell
                return {}
            self._saved = {int(key): mark for key, mark in found.items()}
        return self._saved

    def _save_listing(self) -> None:
        names, saved = self._names or {}, self._listing()
        complete = {n: each.fingerprint for n, each in self._versions.items() if each.complete}
        known = {**saved, **complete}
        listing = {number: mark for number, mark in known.items() if number in names}
        if listing == saved:
            return
        try:
            marks = {str(number): mark for number, mark in listing.items()}
            self._cache.save_listing(self._store.uri, endpoint(self._store.uri), marks)
        except CacheError as error:
            _LOG.warning("%s", error.message)
        self._saved = listing
