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
from typing import Any

from timonel.errors import CorruptError, NotFoundError, SpecError
from timonel.serving.auth.policy import Principal
from timonel.serving.auth.reloaded_file import ReloadedFile
from timonel.serving.settings.auth import Grant, parse_grant
from timonel.storage import exclusive, read_document, write_document

PREFIX = "tml_"
LONGEST = 16 * 1024
"""Maximum length of a key or token in characters."""
_ID_BYTES = 6
_SALT_BYTES = 16
_SECRET_BYTES = 32
# Compared with keys of unknown id, so that they take as long as those of known id.
_NOBODY_SALT, _NOBODY_DIGEST = "00" * _SALT_BYTES, "00" * 32


@dataclass(frozen=True)
class KeyRecord:
    """Stored record of an API key or an authorized client certificate.

    Args:
        id: The public part of the key.
        name: The holder's name.
        grants: The granted permissions.
        created: Creation time in seconds since the epoch.
        expires: Expiry time in seconds since the epoch; None for never.
        salt: Hexadecimal; None for a certificate.
        digest: SHA-256 of salt and secret, hexadecimal; None for a certificate.
        certificate: A name in the client certificate that is accepted instead of a key.
    """

    id: str
    name: str
    grants: tuple[Grant, ...]
    created: float
    expires: float | None = None
    salt: str | None = None
    digest: str | None = None
    certificate: str | None = None

    def is_valid(self, now: float) -> bool:
        """Whether the entry has not expired."""
        return self.expires is None or now < self.expires

    @property
    def principal(self) -> Principal:
        """The principal that the entry authenticates."""
        return Principal(self.name, self.grants)


def new_key(
    name: str, grants: Sequence[Grant], *, now: float, expires: float | None = None
) -> tuple[str, KeyRecord]:
    """Create an API key and its entry.

    Returns:
        The key, which is not stored anywhere, and the entry.
    """
    identity = secrets.token_hex(_ID_BYTES)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    salt = secrets.token_hex(_SALT_BYTES)
    entry = KeyRecord(identity, name, tuple(grants), now, expires, salt, _digest(salt, secret))
    return f"{PREFIX}{identity}_{secret}", entry


def new_certificate(
    name: str,
    certificate: str,
    grants: Sequence[Grant],
    *,
    now: float,
    expires: float | None = None,
) -> KeyRecord:
    """Create an entry for client certificates with the name ``certificate``."""
    identity = secrets.token_hex(_ID_BYTES)
    return KeyRecord(identity, name, tuple(grants), now, expires, certificate=certificate)


class Keyring:
    """The entries of a key file. Immutable.

    Args:
        entries: Entries with distinct ids.
    """

    def __init__(self, entries: Sequence[KeyRecord] = ()) -> None:
        self.entries = tuple(entries)
        self._by_id = {entry.id: entry for entry in entries}

    def recognise(self, key: str, now: float) -> Principal | None:
        """Return a key's principal; None if wrong, revoked or expired."""
        identity, _, secret = key.removeprefix(PREFIX).partition("_")
        entry = self._by_id.get(identity)
        salt = entry.salt if entry and entry.salt else _NOBODY_SALT
        digest = entry.digest if entry and entry.digest else _NOBODY_DIGEST
        same = hmac.compare_digest(_digest(salt, secret), digest)
        if entry is None or not same or not key.startswith(PREFIX) or not entry.is_valid(now):
            return None
        return entry.principal

    def recognise_certificate(self, names: Sequence[str], now: float) -> Principal | None:
        """Return the principal of a client certificate, by its first known name."""
        for name in names:
            for entry in self.entries:
                if entry.certificate == name and entry.is_valid(now):
                    return entry.principal
        return None


def to_body(entries: Sequence[KeyRecord]) -> dict[str, Any]:
    """Return the entries as a document body."""
    return {
        "keys": [
            {
                "id": entry.id,
                "name": entry.name,
                "permissions": [str(grant) for grant in entry.grants],
                "created": entry.created,
                "expires": entry.expires,
                "salt": entry.salt,
                "sha256": entry.digest,
                "certificate": entry.certificate,
            }
            for entry in entries
        ]
    }


def from_body(body: Mapping[str, Any], origin: str) -> tuple[KeyRecord, ...]:
    """Parse the entries in a document body.

    Raises:
        CorruptError: The body is not valid.
    """
    try:
        entries = tuple(_entry(item) for item in body["keys"])
    except (KeyError, TypeError, AttributeError, ValueError, SpecError) as error:
        raise CorruptError(f"{origin} holds an invalid list of API keys: {error!r}") from error
    if len({entry.id for entry in entries}) != len(entries):
        raise CorruptError(f"{origin} holds two API keys with one id")
    return entries


def _entry(item: Mapping[str, Any]) -> KeyRecord:
    entry = KeyRecord(
        id=_text(item["id"]),
        name=_text(item["name"]),
        grants=tuple(parse_grant(text) for text in item["permissions"]),
        created=float(item["created"]),
        expires=None if item["expires"] is None else float(item["expires"]),
        salt=_optional(item.get("salt")),
        digest=_optional(item.get("sha256")),
        certificate=_optional(item.get("certificate")),
    )
    if (entry.digest is None) == (entry.certificate is None):
        raise ValueError(f"{entry.id} with both or neither of a hash and a certificate")
    if entry.digest is not None and not (len(bytes.fromhex(entry.digest)) == 32 and entry.salt):
        raise ValueError(f"{entry.id} without a salted SHA-256")
    return entry


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} instead of a text")
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


def _digest(salt: str, secret: str) -> str:
    return hashlib.sha256(f"{salt}:{secret}".encode("utf-8", "surrogatepass")).hexdigest()


KIND = "api-keys"
_LOG = logging.getLogger(__name__)


def read_entries(path: Path) -> tuple[KeyRecord, ...]:
    """Read the entries of a key file.

    Raises:
        NotFoundError: The file does not exist.
        CorruptError: The file is corrupt.
        FormatError: Another release wrote the file.
    """
    return from_body(read_document(path, KIND), str(path))


def change_entries(
    path: Path, change: Callable[[tuple[KeyRecord, ...]], Sequence[KeyRecord]]
) -> tuple[KeyRecord, ...]:
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
            _LOG.error("API key file %s was deleted; no key is valid.", path)
            return Keyring()

    def failed(error: Exception) -> None:
        _LOG.error("Cannot reload API keys; the previous ones stay valid: %s", error)

    return ReloadedFile((path,), read, failed)
