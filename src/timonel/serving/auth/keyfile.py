"""The file of API keys: written by ``timonel keys``, read by servers, again when it changes."""

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
    """Return the entries of a file.

    Raises:
        NotFoundError: There is none.
        CorruptError: It is damaged.
        FormatError: It is of another release.
    """
    return from_body(read_document(path, KIND), str(path))


def change_entries(
    path: Path, change: Callable[[tuple[Entry, ...]], Sequence[Entry]]
) -> tuple[Entry, ...]:
    """Replace the entries of a file, which is made if it is not there; others wait meanwhile.

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
    """Return the keys of a file, which follow it.

    A file that went away holds no keys. One that cannot be read changes nothing: the keys of
    before stay valid, and the log says so.

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
