"""Files of jobs behind an interface that copies them: nobody shares a path with anybody."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


class Store:
    """Objects by name, in a folder that only this class opens."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, name: str, content: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_bytes(content)
        aside.replace(path)

    def get(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, prefix: str) -> list[str]:
        found = (self._root / prefix).rglob("*")
        return sorted(
            str(path.relative_to(self._root))
            for path in found
            if path.is_file() and path.name[0] != "."
        )


class Replica:
    """Copy of a prefix of a store in a folder, kept the same in both directions.

    A file that changed in the folder is uploaded; one that changed only in the store is downloaded.
    """

    def __init__(self, store: Store, prefix: str, folder: Path) -> None:
        self._store = store
        self._prefix = prefix
        self._folder = folder
        self._seen: dict[str, bytes] = {}
        folder.mkdir(parents=True)

    def sync(self) -> None:
        for path in _files(self._folder):
            name = str(path.relative_to(self._folder))
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                content = path.read_bytes()
                if self._seen.get(name) != content:
                    self._store.put(f"{self._prefix}/{name}", content)
                    self._seen[name] = content
        for full in self._store.names(self._prefix):
            name = full.removeprefix(f"{self._prefix}/")
            content = self._store.get(full) or b""
            if self._seen.get(name) != content:
                self._seen[name] = content
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                aside = self._folder.with_name("download")
                aside.write_bytes(content)
                shutil.move(aside, path)


def _files(folder: Path) -> list[Path]:
    """Return the files below a folder, in which others are writing."""
    while True:
        try:
            return [path for path in folder.rglob("*") if path.is_file()]
        except FileNotFoundError:
            continue  # a folder was renamed while it was listed
