"""Datasets in buckets, read from a verified local cache."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timonel.data.manifest import MANIFEST_NAME, read_manifest
from timonel.errors import AlreadyExistsError, CorruptError, NotFoundError
from timonel.storage import digest_file, verify_file
from timonel.storage.content_cache import CONTENT, ContentCache, FolderLease, write_errors
from timonel.storage.local_copy import cache_folder
from timonel.storage.locks import LockedError
from timonel.storage.object_store import ObjectStore

CACHE_BYTES = 100 << 30
_KEY = "dataset"
_OTHER_PROCESS_S = 0.2
_leases: dict[str, FolderLease] = {}


def fetch_dataset(uri: str) -> Path:
    """Return the local folder of the dataset at a URI, downloaded if it is not cached.

    The manifest is read from the bucket each time. The folder is not removed while this process
    runs.
    """
    store = ObjectStore(uri)
    try:
        manifest = store.read(MANIFEST_NAME)
    except NotFoundError:
        raise NotFoundError(
            f"no dataset at {uri}: it has no {MANIFEST_NAME}", hint="check the URI"
        ) from None
    mark = _mark(manifest)
    if mark in _leases:
        return _leases[mark].path
    cache = _cache()
    # Records have checksums, which readers verify.
    while (lease := cache.lease(uri, _KEY, mark, sizes_only=True)) is None:
        with cache.partial(uri, _KEY) as folder:
            if folder is None:
                time.sleep(_OTHER_PROCESS_S)
            elif not cache.has(uri, _KEY, mark):
                _download(store, cache, folder, mark, manifest)
    _leases[mark] = lease
    return lease.path


def check_absent(uri: str) -> None:
    """Check that no dataset is at a URI."""
    if MANIFEST_NAME in ObjectStore(uri).find():
        raise AlreadyExistsError(
            f"{uri} already exists", hint="choose another destination, or use --overwrite"
        )


@contextmanager
def unpublished_dataset(uri: str) -> Iterator[Path]:
    """Yield a folder; keep its `CONTENT`, which the block publishes, in the cache.

    If the block raises or the process is killed, the folder stays for the next call with the same
    URI, until the cache needs its room.
    """
    cache = _cache()
    with cache.partial(uri, "new") as folder:
        if folder is None:
            raise LockedError(f"another process writes {uri}", hint="wait for it, or stop it")
        yield folder
        content = folder / CONTENT
        for path in [path for path in folder.iterdir() if path != content]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        mark = _mark((content / MANIFEST_NAME).read_bytes())
        if not cache.has(uri, _KEY, mark):
            cache.adopt(folder, uri, _KEY, mark)


def _cache() -> ContentCache:
    return ContentCache(cache_folder() / "datasets", CACHE_BYTES)


def _mark(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:32]


def _download(
    store: ObjectStore, cache: ContentCache, folder: Path, mark: str, manifest: bytes
) -> None:
    content = folder / CONTENT
    with write_errors(folder):
        content.mkdir(exist_ok=True)
        (content / MANIFEST_NAME).write_bytes(manifest)
    files = read_manifest(content).files
    blobs = store.find()
    lost = [file.name for file in files if file.name not in blobs]
    if lost:
        raise CorruptError(
            f"the dataset at {store.uri} has no {lost[0]}", hint="copy the dataset there again"
        )
    paths = {file.name: content / file.name for file in files}
    # Files of an interrupted download; that may have been of another dataset.
    kept = {file.name for file in files if _is_there(paths[file.name], file.digest)}
    missing = {name: path for name, path in paths.items() if name not in kept}
    cache.make_room(sum(blobs[name].size for name in missing), folder)
    store.download(missing, blobs)
    for file in files:
        with _removed_on_error(paths[file.name]):
            verify_file(paths[file.name], file.digest)
    for path in [path for path in content.iterdir() if path.name not in {*paths, MANIFEST_NAME}]:
        path.unlink()
    cache.adopt(folder, store.uri, _KEY, mark)


def _is_there(path: Path, digest: str) -> bool:
    return path.is_file() and digest_file(path) == digest


@contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except CorruptError:
        path.unlink(missing_ok=True)
        raise
