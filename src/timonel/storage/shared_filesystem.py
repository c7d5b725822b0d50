"""File system of a folder that several machines mount, such as one of an NFS server."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from timonel.storage.atomic import ASIDE_PREFIX


class SharedFileSystem(LocalFileSystem):  # type: ignore[misc] # fsspec has no types
    """Local files, listed while other machines write and delete them. Thread-safe.

    fsspec's own listing of a folder is empty if one of its files vanishes meanwhile.
    """

    def ls(self, path: str, detail: bool = False, **options: Any) -> list[Any]:
        """Return the content of a folder, without files that are being written."""
        del options
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith(ASIDE_PREFIX):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(self.info(entry))
        return found if detail else [each["name"] for each in found]

    def find(self, path: str, maxdepth: int | None = None, **options: Any) -> Any:
        """Return the files below a folder; raise an error if a folder cannot be listed."""
        return super().find(path, maxdepth, on_error=_raise_unless_gone, **options)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
