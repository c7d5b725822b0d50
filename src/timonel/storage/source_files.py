"""Files of programs: of a user's folder, as far as git does not ignore them, and of timonel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from timonel.errors import InputError

_LEFT_OUT = frozenset({"__pycache__", "node_modules", "venv"})
"""Folders that are no source; so are those whose names begin with a dot."""


def source_files(folder: Path) -> list[str]:
    """Return the names of a program's files, relative to its folder, sorted."""
    return sorted(set(_names(folder)))


def own_files() -> dict[str, Path]:
    """Return the files of timonel, as it is imported here, by names such as ``timonel/lazy.py``."""
    package = Path(__file__).parents[1]
    return {
        path.relative_to(package.parent).as_posix(): path
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _names(folder: Path) -> Iterator[str]:
    """Yield the names of a folder's files, relative to it."""
    listed = _listed_by_git(folder)
    if listed is not None:
        yield from (name for name in listed if (folder / name).is_file())
        return
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in _LEFT_OUT]
        for name in files:
            if name[0] != "." and Path(path, name).is_file():
                yield str(Path(path, name).relative_to(folder))


def _listed_by_git(folder: Path) -> list[str] | None:
    """Return the files that git does not ignore; None if the folder is not git's."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        if not _is_in_repository(folder):
            return None
        # Files that git ignores, such as keys, must not be taken for source.
        raise InputError(
            f"git cannot list the files of {folder}: {_reason(error)}",
            hint="repair that, or use a copy of the folder that has no .git",
        ) from error
    return [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]


def _is_in_repository(folder: Path) -> bool:
    path = folder.resolve()
    return any(os.path.lexists(each / ".git") for each in (path, *path.parents))


def _reason(error: OSError | subprocess.CalledProcessError) -> str:
    """Return in one line why git did not run, or what it printed."""
    if isinstance(error, FileNotFoundError):
        return "git is not installed"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return " ".join(error.stderr.decode(errors="replace").split()) or str(error)
