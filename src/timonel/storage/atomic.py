"""Writing so that a reader sees all or nothing: write aside, fsync, rename.

Everything written aside has a name that starts with ``.tmp-``; readers skip such names and
`sweep` removes those whose writer is gone. Local file systems only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from timonel.errors import AlreadyExistsError, InputError

ASIDE_PREFIX = ".tmp-"


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file at ``path`` by ``content``, durably.

    Raises:
        InputError: The folder cannot be written.
    """
    aside = path.with_name(_aside_name(path.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_durably(aside, content)
        aside.replace(path)
        sync_dir(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def write_text(path: Path, content: str) -> None:
    """Replace the file at ``path`` by ``content`` in UTF-8, durably."""
    write_bytes(path, content.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the file at ``path`` by ``value`` as indented JSON, durably."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def create_bytes(path: Path, content: bytes) -> None:
    """Make the file at ``path`` with ``content``, durably, unless it is there already.

    Of several processes that try at once, one succeeds.

    Raises:
        AlreadyExistsError: The file exists; it is as it was.
        InputError: The folder cannot be written.
    """
    aside = path.with_name(_aside_name(path.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_durably(aside, content)
        # Unlike a rename, a link does not replace what is there.
        os.link(aside, path)
        sync_dir(path.parent)
    except FileExistsError as error:
        raise exists(path) from error
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def append_line(path: Path, line: str, *, durable: bool = False) -> None:
    """Append ``line`` and a line feed to ``path`` in one write.

    On a local file system a single write in append mode is not interleaved with another
    process', so that several processes may append to one file. A line that a crash cut off
    before its line feed is closed first: it spoils no line but itself.

    Args:
        path: The file; it is made if need be.
        line: The text, without a line feed in it.
        durable: Return only once the line would survive a loss of power.

    Raises:
        InputError: The line cannot be written whole.
    """
    data = f"{line}\n".encode()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(path, error) from error


@contextlib.contextmanager
def publish_dir(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give an empty folder to write into, and make it ``target`` when the block ends.

    If the block raises, the folder is removed and ``target`` is as it was.

    Args:
        target: The folder to be.
        replace: Take the place of a folder that exists; otherwise that is an error.

    Raises:
        AlreadyExistsError: ``target`` exists and ``replace`` is false.
        InputError: The parent folder cannot be written.
    """
    if not replace and target.exists():
        raise exists(target)
    aside = target.with_name(_aside_name(target.name))
    try:
        aside.mkdir(parents=True)
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        yield aside
        sync_tree(aside)
        _rename_dir(aside, target, replace=replace)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def sync_dir(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Make every file and folder below ``root`` durable."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink():
                continue
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_dir(Path(folder))


def sweep(folder: Path) -> list[Path]:
    """Remove what writers that are gone have left aside in ``folder``; return what was removed."""
    removed = []
    for path in folder.glob(f"{ASIDE_PREFIX}*"):
        pid = path.name.removeprefix(ASIDE_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def exists(target: Path) -> AlreadyExistsError:
    """Return the error that says ``target`` is there already."""
    return AlreadyExistsError(
        f"expected {target} not to exist, but it does",
        hint="choose another place, remove it, or give --overwrite where there is one",
    )


def unwritable(path: Path, error: OSError) -> InputError:
    """Return the error that says ``path`` cannot be written, with the system's reason."""
    return InputError(
        f"expected to write {path}, got {error.strerror or error}",
        hint="choose a folder that you may write, with space left",
    )


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _rename_dir(aside: Path, target: Path, *, replace: bool) -> None:
    if replace and target.exists():
        # Two renames: a reader may for an instant see no folder, never a mixed one.
        old = target.with_name(_aside_name(target.name))
        target.rename(old)
        aside.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        try:
            aside.rename(target)
        except OSError as error:
            if target.exists():
                raise exists(target) from error
            raise unwritable(target, error) from error
    sync_dir(target.parent)


def _aside_name(name: str) -> str:
    return f"{ASIDE_PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}-{name}"
