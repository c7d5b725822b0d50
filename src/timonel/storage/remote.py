"""Publish folders to buckets and fetch them.

A bucket has no atomic rename. Readers accept a folder only if its manifest exists, so the manifest
is written after all other files and removed before they are replaced.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Any

from timonel.errors import InputError, NotFoundError
from timonel.storage.atomic import exists
from timonel.storage.object_store import local_files, translated
from timonel.storage.uris import filesystem, normalise


def publish(
    folder: Path, uri: str | os.PathLike[str], *, last: str = "manifest.json", replace: bool = False
) -> None:
    """Copy a local folder to ``uri``, writing the file ``last`` last.

    An interrupted publish leaves no ``last`` and can be repeated. Extra files of a replaced folder
    are removed.

    Args:
        folder: The folder; temporary files of writers are left out.
        uri: The destination, anywhere that fsspec can write.
        last: The file, relative to the folder, that marks the folder as complete.
        replace: Replace an existing folder instead of raising an error.

    Raises:
        NotFoundError: The folder has no file ``last``.
        AlreadyExistsError: A complete folder exists and ``replace`` is false.
        InputError: The destination cannot be written, or an uploaded file has another size.
    """
    names = local_files(folder)
    if last not in names:
        raise NotFoundError(f"{folder} has no {last}")
    fs, root = filesystem(uri)
    with translated("write", normalise(uri)):
        _withdraw(fs, root, last, replace=replace)
        names.remove(last)
        _put(fs, folder, root, names)
        stale = sorted(set(_remote_files(fs, root)) - set(names) - {last})
        if stale:
            fs.rm([posixpath.join(root, name) for name in stale])
        _put(fs, folder, root, [last])


def fetch(uri: str | os.PathLike[str], target: Path) -> None:
    """Copy the file or folder at ``uri`` to the new path ``target``.

    Raises:
        NotFoundError: Nothing is at ``uri``.
        InputError: The source cannot be read, the target cannot be written, or a name would lead
            out of the folder.
    """
    fs, root = filesystem(uri)
    with translated("read", normalise(uri)):
        target.parent.mkdir(parents=True, exist_ok=True)
        if fs.isfile(root):
            fs.get_file(root, str(target))
            return
        names = _remote_files(fs, root)
        if not names:
            raise NotFoundError(f"no file or folder at {normalise(uri)}")
        paths = [_below(target, name) for name in names]
        for path in {path.parent for path in paths}:
            path.mkdir(parents=True, exist_ok=True)
        fs.get([posixpath.join(root, name) for name in names], [str(path) for path in paths])


def _withdraw(fs: Any, root: str, last: str, *, replace: bool) -> None:
    """Remove the file that marks a folder as complete, if it exists."""
    place = posixpath.join(root, last)
    # Another process may have written here since this process listed it.
    fs.invalidate_cache()
    if not fs.exists(place):
        return
    if not replace:
        raise exists(root)
    fs.rm_file(place)


def _put(fs: Any, folder: Path, root: str, names: list[str]) -> None:
    if not names:
        return
    places = [posixpath.join(root, name) for name in names]
    fs.put([str(folder / name) for name in names], places)
    fs.invalidate_cache()
    for name, place in zip(names, places, strict=True):
        expected, found = (folder / name).stat().st_size, fs.size(place)
        if found != expected:
            raise InputError(f"the copy at {place} has {found} bytes instead of {expected}")


def _remote_files(fs: Any, root: str) -> list[str]:
    fs.invalidate_cache()
    prefix = root.rstrip("/") + "/"
    found = fs.find(root)
    # A bucket may hold an empty object in place of a folder.
    names = [place[len(prefix) :] for place in found if place.startswith(prefix)]
    return sorted(name for name in names if name and not name.endswith("/"))


def _below(target: Path, name: str) -> Path:
    if ".." in name.split("/"):
        raise InputError(f"the file name {name!r} leads out of the folder")
    return target / name
