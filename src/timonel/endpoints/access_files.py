"""Read the files of an endpoint's access: API keys, certificate, public keys of tokens."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from timonel.endpoints.gateway.parts import Secrets
from timonel.endpoints.spec import Access
from timonel.errors import CorruptError, InputError, SpecError
from timonel.serving.settings.auth import TlsSettings


def read_files(access: Access, fields: Collection[str]) -> Secrets:
    """Return the contents of files of an access.

    Args:
        fields: Fields of `access` whose files are read.
    """
    keys = access.api_keys if "api_keys" in fields else None
    tls = access.tls if "tls" in fields else None
    jwt = access.jwt if "jwt" in fields and "jwt" in access.files else None
    found = Secrets(
        api_keys=None if keys is None else read_api_keys(Path(keys)),
        certificate=None if tls is None else read_certificate(Path(tls.cert), Path(tls.key)),
        jwks=None if jwt is None else read_jwks(Path(jwt.jwks)),
    )
    if found.api_keys == {}:
        raise SpecError(f"{keys} contains no API key", hint="write lines of the form client=key")
    if jwt is not None and not json.loads(found.jwks or "")["keys"]:
        raise SpecError(f"{jwt.jwks} has no public key")
    return found


def read_api_keys(path: Path) -> dict[str, str]:
    """Return keys by client from a file of lines ``client=key``; ``#`` begins a comment.

    Without any, no key is valid.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the file of API keys {path}: {error}") from error
    if lines and lines[0].lstrip().startswith("{"):
        raise SpecError(
            f"{path} was written by 'timonel keys', for servers",
            hint="an endpoint needs a file with lines of the form client=key",
        )
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        client, equals, key = (part.strip() for part in text.partition("="))
        if not equals or not client or len(key) < 16:
            raise SpecError(
                f"{path}, line {number}: expected client=key with a key of 16 characters or more"
            )
        if client in keys or key in keys.values():
            raise SpecError(f"{path}, line {number}: the client or its key occurs twice")
        keys[client] = key
    return keys


def read_certificate(cert: Path, key: Path) -> tuple[str, str]:
    """Return a certificate chain and its private key in PEM."""
    from timonel.serving.auth.tls import read_pem  # noqa: PLC0415 - most endpoints need none

    found = read_pem(TlsSettings(certificate=str(cert), key=str(key)))
    return found.certificate.decode("latin-1"), found.key.decode("latin-1")


def read_jwks(path: Path) -> str:
    """Return a JSON Web Key Set, which may be empty."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the public keys {path}: {error}") from error
    try:
        keys = json.loads(text)["keys"]
        kinds = {each["kty"] for each in keys}
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"{path} is not a JSON Web Key Set") from error
    if not kinds <= {"RSA", "EC", "OKP"} or any("d" in each for each in keys):
        raise CorruptError(f"{path} has keys that are not public", hint="give the public keys only")
    return text
