"""Publish complete folders to buckets, and fetch files and folders.

A bucket has no atomic rename. Readers accept a folder only if its last file exists, such as a
manifest, so that file is written after all others and removed before they are replaced.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

from timonel.errors import InputError, NotFoundError
from timonel.storage.atomic import exists, write_bytes
from timonel.storage.object_store import ObjectStore, local_files
from timonel.storage.uris import join, normalise


def publish(
    folder: Path, uri: str | os.PathLike[str], *, last: str = "manifest.json", replace: bool = False
) -> None:
    """Copy a local folder to ``uri``, writing the file ``last`` last; see `push`."""
    push(ObjectStore(normalise(uri)), "", folder, last=last, replace=replace)


def push(
    store: ObjectStore, target: str, folder: Path, *, last: str, replace: bool = False
) -> None:
    """Copy a local folder to a folder of a store, writing the file ``last`` last.

    An interrupted upload leaves no ``last`` and can be repeated: only what is missing is
    transferred. Extra files are removed.

    Args:
        target: The folder's name there.
        folder: The local folder; temporary files of writers are left out.
        last: The file, relative to the folder, that marks the folder as complete.
    """
    files = {posixpath.join(target, name): folder / name for name in local_files(folder)}
    final = posixpath.join(target, last)
    if final not in files:
        raise NotFoundError(f"{folder} has no {last}")
    blobs = store.find(target)
    changed = {
        key: path
        for key, path in files.items()
        if key not in blobs or not store.is_same(key, path, blobs[key])
    }
    stale = sorted(blobs.keys() - files.keys())
    if final in blobs and (changed or stale):
        if not replace:
            raise exists(join(store.uri, target).rstrip("/"))
        store.delete([final])
        changed[final] = files[final]
    store.delete(stale)
    store.upload({key: path for key, path in changed.items() if key != final})
    _check_sizes(store, target, {key: path for key, path in files.items() if key != final})
    store.upload({key: path for key, path in changed.items() if key == final})


def fetch(uri: str | os.PathLike[str], target: Path) -> None:
    """Copy the file or folder at ``uri`` to the new path ``target``."""
    store = ObjectStore(normalise(uri))
    if blobs := store.find():
        store.download({name: target / name for name in blobs}, blobs)
        return
    try:
        content = store.read("")
    except NotFoundError:
        raise NotFoundError(f"no file or folder at {normalise(uri)}") from None
    write_bytes(target, content)


def _check_sizes(store: ObjectStore, target: str, files: dict[str, Path]) -> None:
    blobs = store.find(target) if files else {}
    for key, path in files.items():
        found, expected = blobs[key].size if key in blobs else 0, path.stat().st_size
        if key not in blobs or found != expected:
            place = join(store.uri, key)
            raise InputError(f"the copy at {place} has {found} bytes instead of {expected}")
