"""API keys: creation, verification and the key file.

A key is ``tml_<id>_<secret>``. The id is public and identifies the entry; the secret is 256 random
bits. Such a secret cannot be guessed or found in a dictionary, so a slow hash would not protect it;
it would only let clients with wrong keys take CPU time from the models. Hence a single SHA-256 over
a salt and the secret. ``timonel keys`` writes the file; servers reload it on change.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from timonel.errors import CorruptError, NotFoundError
from timonel.serving.auth.reloaded_file import ReloadedFile
from timonel.serving.settings.auth import Right
from timonel.storage import exclusive, read_document, write_document

PREFIX = "tml_"
_ID_BYTES = 6
_SALT_BYTES = 16
_SECRET_BYTES = 32
# Compared with keys of unknown id, so that they take as long as those of known id.
_NOBODY_SALT, _NOBODY_DIGEST = "00" * _SALT_BYTES, "00" * 32


_Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class KeyRecord:
    """Stored record of an API key.

    Args:
        name: The holder's name.
        right: What the holder may do.
        created: Creation time in seconds since the epoch.
        sha256: Of salt and secret, hexadecimal.
        expires: Expiry time in seconds since the epoch; None for never.
    """

    id: _Text
    name: _Text
    right: Right
    created: float
    salt: _Text
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    expires: float | None = None

    def is_valid(self, now: float) -> bool:
        """Whether the entry has not expired."""
        return self.expires is None or now < self.expires


_KEYS = TypeAdapter(tuple[KeyRecord, ...])


def new_key(
    name: str, right: Right = Right.USE, *, now: float, expires: float | None = None
) -> tuple[str, KeyRecord]:
    """Create an API key and its entry.

    Returns:
        The key, which is not stored anywhere, and the entry.
    """
    identity = secrets.token_hex(_ID_BYTES)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    salt = secrets.token_hex(_SALT_BYTES)
    entry = KeyRecord(identity, name, right, now, salt, _digest(salt, secret), expires)
    return f"{PREFIX}{identity}_{secret}", entry


class Keyring:
    """The entries of a key file, with distinct ids. Immutable."""

    def __init__(self, entries: Sequence[KeyRecord] = ()) -> None:
        self._by_id = {entry.id: entry for entry in entries}

    def recognise(self, key: str, now: float) -> Right | None:
        """Return a key's right; None if the key is wrong, revoked or expired."""
        identity, _, secret = key.removeprefix(PREFIX).partition("_")
        entry = self._by_id.get(identity)
        salt, digest = (entry.salt, entry.sha256) if entry else (_NOBODY_SALT, _NOBODY_DIGEST)
        same = hmac.compare_digest(_digest(salt, secret), digest)
        if entry is None or not same or not key.startswith(PREFIX) or not entry.is_valid(now):
            return None
        return entry.right


def to_body(entries: Sequence[KeyRecord]) -> dict[str, Any]:
    """Return the entries as a document body."""
    return {"keys": _KEYS.dump_python(tuple(entries), mode="json")}


def from_body(body: Mapping[str, Any], origin: str) -> tuple[KeyRecord, ...]:
    """Parse the entries in a document body."""
    try:
        entries = _KEYS.validate_python(body["keys"])
    except (KeyError, ValueError) as error:
        raise CorruptError(f"{origin} holds an invalid list of API keys") from error
    if len({entry.id for entry in entries}) != len(entries):
        raise CorruptError(f"{origin} holds two API keys with one id")
    return entries


def _digest(salt: str, secret: str) -> str:
    return hashlib.sha256(f"{salt}:{secret}".encode("utf-8", "surrogatepass")).hexdigest()


KIND = "api-keys"
_CURE = "make one with 'timonel keys create NAME --file FILE'"
_LOG = logging.getLogger(__name__)


def read_entries(path: Path) -> tuple[KeyRecord, ...]:
    """Read the entries of a key file."""
    try:
        document = read_document(path, KIND)
    except NotFoundError as error:
        raise NotFoundError(f"there is no file of API keys {path}", hint=_CURE) from error
    except CorruptError as error:
        hint = f"{_CURE}; lines of the form client=key are for 'timonel deploy'"
        raise CorruptError(error.message, hint=hint) from error
    return from_body(document, str(path))


def change_entries(
    path: Path, change: Callable[[tuple[KeyRecord, ...]], Sequence[KeyRecord]]
) -> tuple[KeyRecord, ...]:
    """Change the entries of a key file under a lock.

    A missing file is created.
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

    A deleted or empty file means no keys. If one cannot be read, the previous keys stay valid and
    an error is logged.
    """
    read_entries(path)

    def read() -> Keyring:
        try:
            return Keyring(read_entries(path))
        except (NotFoundError, CorruptError):
            if path.exists() and path.stat().st_size:
                raise
            _LOG.error("API key file %s was deleted or emptied; no key is valid.", path)
            return Keyring()

    def failed(error: Exception) -> None:
        _LOG.error("Cannot reload API keys; the previous ones stay valid: %s", error)

    return ReloadedFile((path,), read, failed)
