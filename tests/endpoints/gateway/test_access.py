from __future__ import annotations

from pathlib import Path

import pytest

from timonel.endpoints.gateway.access import access_filters, read_api_keys
from timonel.endpoints.spec import Access, Jwt
from timonel.errors import InputError, SpecError

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


def test_tokens_need_an_expiry() -> None:
    (found,) = access_filters(Access(jwt=Jwt(issuer="https://i", audience="a", jwks="/j")), {})
    provider = found["typed_config"]["providers"]["issuer"]
    assert (provider["audiences"], provider["require_expiration"]) == (["a"], True)
    assert access_filters(Access(), {}) == []
