"""File of API keys: written by ``timonel keys``, watched by servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from timonel.errors import NotFoundError
from timonel.serving.auth.keys import Entry, Keyring, from_body, to_body
from timonel.serving.auth.reloaded_file import ReloadedFile
from timonel.storage import exclusive, read_document, write_document

KIND = "api-keys"
_LOG = logging.getLogger(__name__)


def read_entries(path: Path) -> tuple[Entry, ...]:
    """Read the entries of a key file.

    Raises:
        NotFoundError: The file does not exist.
        CorruptError: The file is corrupt.
        FormatError: Another release wrote the file.
    """
    return from_body(read_document(path, KIND), str(path))


def change_entries(
    path: Path, change: Callable[[tuple[Entry, ...]], Sequence[Entry]]
) -> tuple[Entry, ...]:
    """Change the entries of a key file under a lock.

    A missing file is created.

    Args:
        path: The file.
        change: Gets the entries and returns the new ones.
    """
    with exclusive(path.with_name(f".{path.name}.lock")):
        try:
            entries = read_entries(path)
        except NotFoundError:
            entries = ()
        changed = tuple(change(entries))
        write_document(path, KIND, to_body(changed))
        path.chmod(0o600)
    return changed


def watched_keys(path: Path) -> ReloadedFile[Keyring]:
    """Return the keys of a file, reloaded on change.

    A deleted file means no keys. If a file cannot be read, the previous keys stay valid and an
    error is logged.

    Raises:
        TimonelError: The file cannot be read now.
    """
    read_entries(path)

    def read() -> Keyring:
        try:
            return Keyring(read_entries(path))
        except NotFoundError:
            _LOG.error("the API keys are gone, none is valid: %s", path)
            return Keyring()

    def failed(error: Exception) -> None:
        _LOG.error("the API keys stay what they were: %s", error)

    return ReloadedFile((path,), read, failed)
