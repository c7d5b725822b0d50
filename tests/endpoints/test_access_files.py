from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.auth.certificates import Authority
from tests.serving.auth.tokens import elliptic, jwks
from timonel.endpoints.access_files import read_api_keys, read_certificate, read_jwks
from timonel.errors import CorruptError, InputError, SpecError

KEY = "0123456789abcdef"


def test_keys_by_client(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# comment\n\nshop = {KEY}\nlab={KEY}=\n")
    assert read_api_keys(path) == {"shop": KEY, "lab": f"{KEY}="}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no API key"),
        ("shop", "line 1: expected client=key"),
        ("shop=short", "line 1: expected client=key with a key of 16 characters"),
        (f"shop={KEY}\nshop={KEY}2", "line 2: the client or its key occurs twice"),
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
    path.write_text('{"keys": []}')
    with pytest.raises(CorruptError, match="has no public key"):
        read_jwks(path)
    with pytest.raises(InputError, match="cannot read the public keys"):
        read_jwks(tmp_path / "none")
