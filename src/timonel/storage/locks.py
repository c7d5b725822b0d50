"""File lock between processes."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from timonel.errors import InputError, TimonelError
from timonel.storage.atomic import unwritable

_SILENT_S = 5.0
_logger = logging.getLogger(__name__)


class LockedError(TimonelError):
    """Another process holds the lock."""


@contextlib.contextmanager
def exclusive(path: Path, *, timeout_s: float = 30.0) -> Iterator[None]:
    """Hold the lock file at ``path`` during the block.

    The kernel releases the lock when its holder dies, so no stale lock remains. Works between
    processes and threads of one machine; not re-entrant. A child process forked during the block
    holds the lock as well. Logs what it waits for after 5 s.

    Raises:
        InputError: The lock file cannot be created.
        LockedError: Another process held the lock for ``timeout_s`` seconds.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        _acquire(descriptor, path, timeout_s)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock file at ``path``. Writes nothing.

    Raises:
        InputError: The lock file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        # Shared, so that two processes that ask at the same time see no holder in each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _acquire(descriptor: int, path: Path, timeout_s: float) -> None:
    begun, is_silent = time.monotonic(), True
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited_s = time.monotonic() - begun
            if waited_s >= timeout_s:
                raise LockedError(
                    f"cannot lock {path}: another process held it for {timeout_s:g} s",
                    hint="wait for that process, or stop it",
                ) from None
            if is_silent and waited_s >= _SILENT_S:
                is_silent = False
                _logger.warning(
                    "waiting for another process that holds %s, for up to %g s", path, timeout_s
                )
            time.sleep(0.02)
        else:
            return
