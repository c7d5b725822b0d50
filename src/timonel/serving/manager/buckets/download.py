"""Download a version from a bucket into the cache, verified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from timonel.models.schema import KEPT_REFERENCE, VERSION_FILE
from timonel.serving.manager.buckets.listing import BucketError
from timonel.serving.status import Code, StatusError
from timonel.storage import digest_tree
from timonel.storage.blobs import Blob, fingerprint, is_copy
from timonel.storage.content_cache import CONTENT, ContentCache, FolderLease, write_errors
from timonel.storage.object_store import ObjectStore

_ATTEMPTS = 3
_OTHER_SERVER_S = 0.2
_EXTRA = "assets.extra"

Wait = Callable[[float], bool]
"""Wait for some seconds; return True, at once, when the source is closed."""


def fetch_version(
    store: ObjectStore,
    cache: ContentCache,
    number: int,
    name: str,
    blobs: Sequence[Blob] | None,
    mark: str,
    wait: Wait,
) -> FolderLease:
    """Return a version's folder in the cache, verified; download it if needed.

    Args:
        blobs: Its objects; None if the bucket could not be listed.
    """
    uri, key = store.uri, str(number)
    attempts = 0
    while not wait(0):
        lease = cache.lease(uri, key, mark)
        if lease is not None:
            return lease
        if blobs is None:
            raise BucketError(
                Code.UNAVAILABLE,
                f"Version {number} of {uri} is not in the cache, and the bucket cannot be reached.",
            )
        if attempts == _ATTEMPTS:
            raise BucketError(
                Code.DATA_LOSS, f"The cache in {cache.root} does not keep downloaded versions."
            )
        with cache.partial(uri, key) as folder:
            # Another server may have finished it just before.
            if folder is not None and not cache.has(uri, key, mark):
                attempts += 1
                _download(store, cache, folder, name, blobs)
                _check_digest(folder, f"{uri}/{name}")
                cache.adopt(folder, uri, key, mark)
                continue
        # Another server downloads it, or is about to release it.
        wait(_OTHER_SERVER_S)
    raise StatusError(Code.CANCELLED, "The download was cancelled.")


def _download(
    store: ObjectStore, cache: ContentCache, folder: Path, name: str, blobs: Sequence[Blob]
) -> None:
    """Download the objects of a version that an interrupted download has not brought."""
    content = folder / CONTENT
    kept = {b.name for b in blobs if (content / b.name).is_file() and is_copy(content / b.name, b)}
    with write_errors(folder):
        if not kept:
            shutil.rmtree(content, ignore_errors=True)
        for path in [path for path in content.rglob("*") if path.is_file()]:
            if path.relative_to(content).as_posix() not in kept:
                path.unlink()
    missing = {f"{name}/{blob.name}": blob for blob in blobs if blob.name not in kept}
    cache.make_room(sum(max(0, blob.size) for blob in missing.values()), folder)
    store.download({key: content / blob.name for key, blob in missing.items()}, missing)
    # Objects that are complete one by one may still belong to two uploads.
    if fingerprint(store.find(name).values()) != fingerprint(blobs):
        raise BucketError(Code.ABORTED, f"{store.uri}/{name} changed during its download.")


def _check_digest(folder: Path, place: str) -> None:
    """Reject a version that differs from what timonel published.

    Versions of other tools have no digest. Files that were added to ``assets.extra`` later, such as
    warm-up requests, are ignored.
    """
    content = folder / CONTENT
    try:
        digest = json.loads((content / VERSION_FILE).read_bytes()).get("digest")
    except (OSError, ValueError, AttributeError, RecursionError):
        return
    if digest is None or digest == digest_tree(content, exclude={VERSION_FILE, KEPT_REFERENCE}):
        return
    files = (path for path in (content / _EXTRA).rglob("*") if path.is_file())
    if digest == digest_tree(content, exclude={p.relative_to(content).as_posix() for p in files}):
        return
    shutil.rmtree(folder, ignore_errors=True)
    raise BucketError(
        Code.DATA_LOSS,
        f"{place} does not have its published digest: it is still incomplete, or was changed.",
    )
