from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.tracking.redaction import (
    MASK,
    is_secret,
    redact_command,
    redact_params,
    redact_text,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("password", "123456"),
        ("DB_PASSWORD", "x"),
        ("dbPassword", "x"),
        ("api_key", "abc"),
        ("apikey", "abc"),
        ("AWS_SECRET_ACCESS_KEY", "abc"),
        ("hf-token", "abc"),
        ("accessToken", "12345678901234567890"),
        ("client_secret", "x"),
        ("X-Goog-Signature", "5ab"),
        ("sig", "aGVsbG8="),
        ("authorization", "abc"),
    ],
)
def test_names_of_secrets(name: str, value: object) -> None:
    assert is_secret(name, value)
    assert redact_params({name: value}) == {name: MASK}
    assert redact_params({"outer": {name: value}}) == {"outer": {name: MASK}}
    assert redact_params({name: [value]}) == {name: [MASK]}
    assert redact_command(["x", f"--{name}", str(value), "end"]) == ["x", f"--{name}", MASK, "end"]
    assert redact_command([f"--{name}={value}"]) == [f"--{name}={MASK}"]
    assert redact_command([f"{name}={value}"]) == [f"{name}={MASK}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key_dim", 64),
        ("max_tokens", 512),
        ("token_length", "12"),
        ("pad_token", 0),
        ("eos_token", "2"),
        ("monkey", "see"),
        ("use_token", True),
        ("api_key", None),
        ("api_key", ""),
        ("lr", 0.1),
        ("keys", "a,b"),
        ("signature", "serving_default"),
    ],
)
def test_hyperparameters_are_kept(name: str, value: object) -> None:
    assert redact_params({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:pw@host/x", "https://***@host/x"),
        ("https://pw@host/x and s3://a:b@c", "https://***@host/x and s3://***@c"),
        ("https://h/x?X-Amz-Signature=abc&y=1", "https://h/x?X-Amz-Signature=***&y=1"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
        ("id AKIAABCDEFGHIJKLMNOP.", "id ***."),
        ("ghp_" + "a" * 36, MASK),
        ("hf_" + "a" * 30, MASK),
        ("a@b.org", "a@b.org"),
        ("/data/a=b/key=c", "/data/a=b/key=c"),
        ("s3://bucket/path", "s3://bucket/path"),
    ],
)
def test_texts_lose_credentials_only(text: str, expected: str) -> None:
    assert redact_text(text) == expected


def test_a_flag_without_a_value_does_not_hide_the_next_flag() -> None:
    assert redact_command(["--token", "--lr", "0.1"]) == ["--token", "--lr", "0.1"]
    assert redact_command(["--set", "token=abc", "--", "--lr=0.1"]) == [
        "--set",
        "token=***",
        "--",
        "--lr=0.1",
    ]


@given(st.lists(st.text()))
def test_redaction_is_idempotent_and_keeps_the_length(command: list[str]) -> None:
    once = redact_command(command)
    assert len(once) == len(command)
    assert redact_command(once) == once
