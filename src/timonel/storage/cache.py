"""Verified local cache of remote content, keyed by digest.

TensorFlow opens local paths only, so everything it reads from a bucket goes through this cache.

    <cache>/sha256-<hex>/entry.json       the document: source URI, and each file's size and mtime
    <cache>/sha256-<hex>/content/<name>   the file or folder
    <cache>/sha256-<hex>.lock

Entries are published atomically and verified when fetched. Each later use compares names, sizes
and times, without reading the content, and fetches the entry again if they differ.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timonel.errors import CorruptError, SpecError, TimonelError
from timonel.storage.atomic import publish_dir, sweep
from timonel.storage.digests import digest_tree, verify_file
from timonel.storage.documents import read_document, write_document
from timonel.storage.locks import exclusive
from timonel.storage.remote import fetch
from timonel.storage.uris import is_local, local_path, normalise

Verify = Callable[[Path, str], None]

_ENTRY = "entry.json"
_CONTENT = "content"
# Another process may be fetching the same gigabytes.
_LOCK_TIMEOUT_S = 3600.0


def localize(
    uri: str | os.PathLike[str],
    digest: str,
    cache_dir: Path,
    *,
    verify: Verify | None = None,
    recheck: bool = False,
) -> Path:
    """Return a local path of the content at ``uri``, fetched if needed.

    Safe between processes: one fetches, the others wait and use the result. Content that is at
    several URIs is fetched once.

    Args:
        uri: A file or folder. A local one is returned unverified: it may be huge and belongs to
            the user.
        digest: The content's digest, the key of the cache entry.
        cache_dir: The cache.
        verify: Called with the fetched path and the digest, raises CorruptError on a mismatch.
            By default the digest is that of the file or of the folder's tree; content with
            its own kind of digest, such as a dataset, needs its own check.
        recheck: Fully verify cached content, too.

    Raises:
        SpecError: The digest is malformed.
        NotFoundError: Nothing is at ``uri``.
        InputError: The content cannot be read, or the cache cannot be written.
        CorruptError: The fetched content does not match the digest.
    """
    if is_local(uri):
        return local_path(uri)
    check = verify or verify_content
    entry = cache_dir / _entry_name(digest)
    with exclusive(cache_dir / f"{entry.name}.lock", timeout_s=_LOCK_TIMEOUT_S):
        if not _is_sound(entry, digest, check if recheck else None):
            sweep(cache_dir)
            _fetch(normalise(uri), digest, entry, check)
        return _content(entry)


def verify_content(path: Path, digest: str) -> None:
    """Check the digest of a file or of a folder's tree.

    Raises:
        CorruptError: The digest differs.
    """
    if not path.is_dir():
        verify_file(path, digest)
    elif (found := digest_tree(path)) != digest:
        raise CorruptError(f"expected {path} to have digest {digest}, found {found}")


def _fetch(uri: str, digest: str, entry: Path, check: Verify) -> None:
    with publish_dir(entry, replace=True) as aside:
        content = aside / _CONTENT / uri.rpartition("/")[2]
        fetch(uri, content)
        try:
            check(content, digest)
        except CorruptError as error:
            raise CorruptError(
                f"expected digest {digest} of {uri}, but what was fetched has another",
                hint="it was changed after its digest was recorded, or cut off: make it again",
            ) from error
        body = {"uri": uri, "digest": digest, "files": _listing(aside / _CONTENT)}
        write_document(aside / _ENTRY, "cache-entry", body)


def _content(entry: Path) -> Path:
    """Return an entry's file or folder, which keeps its original name."""
    (content,) = (entry / _CONTENT).iterdir()
    return content


def _is_sound(entry: Path, digest: str, check: Verify | None) -> bool:
    """Tell whether an entry exists and is unchanged since it was verified."""
    try:
        found: dict[str, Any] = read_document(entry / _ENTRY, "cache-entry")
        if found.get("files") != _listing(entry / _CONTENT):
            return False
        if check is not None:
            check(_content(entry), digest)
    except (TimonelError, OSError, ValueError):
        return False
    return True


def _listing(root: Path) -> dict[str, list[int]]:
    """Return size and mtime of every file below ``root``, JSON-compatible."""
    return {
        path.relative_to(root).as_posix(): [path.stat().st_size, path.stat().st_mtime_ns]
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def _entry_name(digest: str) -> str:
    algorithm, _, digits = digest.partition(":")
    if algorithm != "sha256" or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise SpecError(f"expected a digest such as sha256:<64 digits>, got {digest!r}")
    return f"{algorithm}-{digits}"
