"""Find and read the folders of jobs and services."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from timonel.errors import CorruptError, NotFoundError, TimonelError

_logger = logging.getLogger(__name__)
_Status = TypeVar("_Status")


def is_folder(parent: Path, name: str) -> bool:
    """Return whether a name that a user gave is the name of a folder in ``parent``."""
    return bool(name) and "/" not in name and name[0] != "." and (parent / name).is_dir()


def readable(
    parent: Path, document: str, kind: str, read: Callable[[Path], _Status]
) -> Iterator[_Status]:
    """Yield what is read from each folder with a document, by name; log and skip unreadable ones.

    Args:
        document: Name of the document that makes a folder complete.
        kind: ``job`` or ``service``, for the log.
    """
    for path in sorted(parent.glob(f"[!.]*/{document}")):
        try:
            yield read(path.parent)
        except NotFoundError:
            continue  # removed after listing
        except TimonelError as error:
            _logger.warning("skipped %s %s: %s", kind, path.parent.name, error)


@contextlib.contextmanager
def checked(path: Path, kind: str) -> Iterator[None]:
    """Raise a `CorruptError` if the block cannot use the content of a document.

    Args:
        kind: ``job`` or ``service``.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CorruptError(
            f"the {kind} document {path} is damaged: {type(error).__name__}: {reason}",
            hint=f"remove the {kind}'s folder once none of its processes runs",
        ) from error
