"""Distinguish errors of records from transient errors of disks and networks.

A record is rejected only for what is wrong with it. A transient error is retried, then raised:
otherwise one network hiccup would change the dataset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from timonel.errors import InputError

NEVER_READABLE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors of a file that a retry does not cure."""

_WAITS_S = (0.1, 1.0, 5.0)
_T = TypeVar("_T")


def retried(call: Callable[[], _T], sleep: Callable[[float], None] = time.sleep) -> _T:
    """Return the result of ``call``, which reads a file, repeated after transient errors."""
    for wait in _WAITS_S:
        try:
            return call()
        except NEVER_READABLE:
            raise
        except OSError:
            sleep(wait)
    return call()


def unreadable(what: object, error: OSError) -> InputError:
    """Return the error for a file that no attempt could read."""
    return InputError(
        f"cannot read {what} after {len(_WAITS_S) + 1} attempts: {error.strerror or error}",
        hint="check the disk or the network, then run the same command again to continue",
    )
