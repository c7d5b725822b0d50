"""Write files and folders atomically: write aside, fsync, rename.

Temporary names start with ``.tmp-`` and contain the pid and host of the writer. Readers skip such
names, and `sweep` removes those of dead writers. Local file systems only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from timonel.errors import AlreadyExistsError, InputError

ASIDE_PREFIX = ".tmp-"
_BUFFER_BYTES = 1 << 20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

_T = TypeVar("_T")


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file at ``path`` with ``content``, durably.

    Raises:
        InputError: The folder cannot be written.
    """
    _write_aside(path, content, os.replace)


def write_text(path: Path, content: str) -> None:
    """Replace the file at ``path`` with ``content`` in UTF-8, durably.

    Lone surrogates are escaped as in JSON.
    """
    write_bytes(path, content.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the file at ``path`` with ``value`` as indented JSON, durably."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def escape_surrogates(text: str) -> str:
    """Return text that UTF-8 can encode: lone surrogates become JSON escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces the one at ``path``, durably, if the block succeeds."""
    aside = path.with_name(aside_name(path.name))
    try:
        with aside.open("wb", buffering=_BUFFER_BYTES) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def create_bytes(path: Path, content: bytes) -> None:
    """Create the file at ``path`` with ``content``, durably, unless it exists.

    If several processes try at once, one succeeds.
    """
    # Unlike a rename, a link does not replace an existing file.
    _write_aside(path, content, os.link)


def append_line(path: Path, line: str, *, durable: bool = False) -> None:
    """Append ``line`` and a line feed to ``path`` in one write.

    On a local file system a single write in append mode is not interleaved with writes of other
    processes, so several processes may append to one file. If a crash truncated the last line, a
    line feed is added first, so that only that line is lost.

    Args:
        path: The file; created if missing.
        line: The text, without a line feed.
        durable: Fsync the file before returning.

    Raises:
        InputError: The line cannot be written completely.
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


def parse_lines(path: Path, parse: Callable[[bytes], _T]) -> list[_T]:
    """Parse the lines of a file that `append_line` writes; a missing file has none.

    Args:
        parse: Parse one line. Lines for which it raises ValueError are skipped, such as those
            that a crash truncated.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_content(content, parse)


def parse_content(content: bytes, parse: Callable[[bytes], _T]) -> list[_T]:
    """Parse the lines of a file's content, as `parse_lines` does."""
    found = []
    # Not str.splitlines: texts in JSON may contain other line separators of Unicode.
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError):
            found.append(parse(line))
    return found


def append_bytes(path: Path, content: bytes) -> None:
    """Append ``content`` to the file at ``path``, durably. For a single writer."""
    try:
        with path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path, error) from error


@contextlib.contextmanager
def publish_dir(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder and publish it as ``target`` on exit.

    If the block raises, the folder is removed and ``target`` is unchanged.

    Args:
        target: The folder to publish.
        replace: Replace an existing folder instead of raising an error.

    Raises:
        AlreadyExistsError: ``target`` exists and ``replace`` is false.
        InputError: The parent folder cannot be written.
    """
    if not replace and target.exists():
        raise exists(target)
    with aside_dir(target) as aside:
        yield aside
        install_dir(aside, target, replace=replace)


@contextlib.contextmanager
def aside_dir(target: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``target`` and remove it on exit.

    Unlike the system's temporary folder, it is on the same disk as ``target``, and `sweep` finds
    it if the process is killed.
    """
    aside = target.with_name(aside_name(target.name))
    try:
        aside.mkdir(parents=True)
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        yield aside
    finally:
        # After publishing, this is the replaced folder or does not exist.
        shutil.rmtree(aside, ignore_errors=True)


def install_dir(aside: Path, target: Path, *, replace: bool) -> None:
    """Publish a complete folder as ``target``; a replaced folder is at ``aside`` then.

    Args:
        aside: The folder, on the same file system.
    """
    try:
        sync_tree(aside)
        if replace and target.exists():
            _exchange(aside, target)
        else:
            aside.rename(target)
        sync(target.parent)
    except OSError as error:
        if target.exists() and not replace:
            raise exists(target) from error
        raise unwritable(target, error) from error


def sync(path: Path) -> None:
    """Fsync a file, or a folder so that its directory entries are durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Fsync every file and folder below ``root``."""
    for folder, _, names in os.walk(root):
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                sync(path)
        sync(Path(folder))


def sweep(folder: Path) -> list[Path]:
    """Remove temporary files of dead writers in ``folder``; return their paths.

    Those of other hosts are kept, because their writers may still be alive.
    """
    removed = []
    for path in folder.glob(f"{ASIDE_PREFIX}*-{_host_tag()}-*"):
        pid = path.name.removeprefix(ASIDE_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
            removed.append(path)
    return removed


def temporary_prefix() -> str:
    """Return a prefix for names of temporary folders, and remove folders of dead processes."""
    sweep(Path(tempfile.gettempdir()))
    return f"{ASIDE_PREFIX}{os.getpid()}-{_host_tag()}-"


def exists(target: str | Path) -> AlreadyExistsError:
    """Return the error for a ``target`` that already exists."""
    return AlreadyExistsError(
        f"{target} already exists",
        hint="choose another path, or remove it",
    )


def unwritable(path: Path, error: OSError) -> InputError:
    """Return the error for an unwritable ``path``, with the system's reason."""
    return InputError(
        f"cannot write {_meant(path)}: {error.strerror or error}",
        hint="choose a writable folder with free space",
    )


def aside_name(name: str) -> str:
    """Return a new temporary name for a file to be called ``name``."""
    # Truncated to stay within the limit on the length of a file's name, which is in bytes.
    end = os.fsencode(name)[:64].decode(errors="ignore")
    return f"{ASIDE_PREFIX}{os.getpid()}-{_host_tag()}-{uuid.uuid4().hex[:8]}-{end}"


def _meant(path: Path) -> Path:
    """Return the path after publishing: of a file in a temporary folder, that of the folder."""
    for folder in (*reversed(path.parents), path):
        if folder.name.startswith(ASIDE_PREFIX):
            return folder.with_name(folder.name.split("-", 4)[-1])
    return path


def _write_aside(path: Path, content: bytes, install: Callable[[Path, Path], None]) -> None:
    """Write a temporary file and ``install`` it at ``path``."""
    aside = path.with_name(aside_name(path.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        install(aside, path)
        sync(path.parent)
    except OSError as error:
        if error.errno == errno.EEXIST and path.exists():
            raise exists(path) from error
        raise unwritable(path, error) from error
    finally:
        # After a rename the file is gone already; Ctrl-C may have come at any point.
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def _exchange(aside: Path, target: Path) -> None:
    """Swap two folders in one step, so that ``target`` always exists."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        renameat2 = libc.renameat2
    except AttributeError:
        found = errno.ENOSYS
    else:
        names = os.fsencode(aside), os.fsencode(target)
        failed = renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
        found = ctypes.get_errno() if failed else 0
    if found in {errno.ENOSYS, errno.EINVAL}:
        # Not supported by some file systems: the target is missing for an instant, never mixed.
        old = target.with_name(aside_name(target.name))
        target.rename(old)
        aside.rename(target)
        old.rename(aside)
    elif found:
        raise OSError(found, os.strerror(found), str(target))


def _host_tag() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
