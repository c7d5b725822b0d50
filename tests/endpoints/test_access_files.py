from __future__ import annotations

from pathlib import Path

import pytest

from tests.endpoints.tokens import elliptic, jwks
from tests.serving.auth.certificates import Authority
from timonel.endpoints.access_files import (
    read_api_keys,
    read_certificate,
    read_files,
    read_jwks,
)
from timonel.endpoints.spec import Access, Jwt
from timonel.errors import CorruptError, InputError, SpecError

KEY = "0123456789abcdef"


def test_keys_by_client(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# comment\n\nshop = {KEY}\nlab={KEY}=\n")
    assert read_api_keys(path) == {"shop": KEY, "lab": f"{KEY}="}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shop", "line 1: expected client=key"),
        ("shop=short", "line 1: expected client=key with a key of 16 characters"),
        (f"shop={KEY}\nshop={KEY}2", "line 2: the client or its key occurs twice"),
        ('{"kind": "api-keys"}', r"written by 'timonel keys', for servers: .* client=key"),
        (f"shop={KEY}\nlab={KEY}", "line 2: the client or its key occurs twice"),
    ],
)
def test_bad_files_of_keys(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(SpecError, match=message) as error:
        read_api_keys(path)
    assert KEY not in str(error.value)


def test_a_missing_file_of_keys(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the file of API keys"):
        read_api_keys(tmp_path / "none")


def test_a_certificate_needs_its_own_key(tmp_path: Path) -> None:
    authority = Authority()
    cert, key = authority.issue(tmp_path, "server")
    _, other = authority.issue(tmp_path, "other")
    assert read_certificate(cert, key) == (cert.read_text(), key.read_text())
    with pytest.raises(SpecError, match="cannot use the certificate and private key"):
        read_certificate(cert, other)
    with pytest.raises(SpecError, match="cannot use the certificate and private key"):
        read_certificate(tmp_path / "none", key)


def test_public_keys_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "jwks"
    text = jwks(elliptic())
    path.write_text(text)
    assert read_jwks(path) == text
    for damaged in ("", "[]", '{"keys": 3}', '{"keys": [{}]}'):
        path.write_text(damaged)
        with pytest.raises(CorruptError, match="is not a JSON Web Key Set"):
            read_jwks(path)
    path.write_text('{"keys": [{"kty": "RSA", "d": "x"}]}')
    with pytest.raises(CorruptError, match="keys that are not public"):
        read_jwks(path)
    with pytest.raises(InputError, match="cannot read the public keys"):
        read_jwks(tmp_path / "none")


def test_a_deployment_needs_a_key(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("# none")
    with pytest.raises(SpecError, match="contains no API key"):
        read_files(Access(api_keys=str(path)), ["api_keys"])
    path.write_text('{"keys": []}')
    with pytest.raises(SpecError, match="has no public key"):
        read_files(Access(jwt=Jwt(issuer="i", jwks=str(path))), ["jwt"])
