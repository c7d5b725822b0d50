"""Redact secrets: pure functions of texts, command lines and parameters.

Two rules apply. Text loses anything in the format of a credential (a URL's user part, a signed
query, a known token format). A parameter or flag loses its value if its *name* marks it as secret.
Hyperparameters such as ``key_dim``, ``max_tokens`` or ``pad_token=0`` are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"

_ALWAYS_SECRET = {
    "password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "apikey",
    "signature", "sig",
}  # fmt: skip
# Secret only as the last word, and only if the value is not a small number.
_SECRET_AT_END = {"token", "key", "auth", "authorization", "pat"}
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SMALL_NUMBER = re.compile(r"[-+]?\d{0,7}(\.\d+)?\Z")
_URL_USER = re.compile(r"(?<=://)[^/\s@]+@")
_PAIR_IN_TEXT = re.compile(r"(?<=[?&;\s])([A-Za-z][\w.-]*)=([^&;\s]+)")
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}", re.IGNORECASE)
_TOKEN_SHAPES = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS access keys
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # JSON Web Tokens
)


def redact_text(text: str) -> str:
    """Redact credentials in ``text``, recognized by their format."""
    text = _URL_USER.sub(f"{MASK}@", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _TOKEN_SHAPES.sub(MASK, text)
    return _PAIR_IN_TEXT.sub(_redact_pair, text)


def redact_value(value: Any) -> Any:
    """Redact credentials in all strings of a JSON-able value, by format."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {str(key): redact_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value(item) for item in value]
    return value


def redact_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Redact the values of parameters with secret names."""
    return {str(name): _redact_param(str(name), value) for name, value in params.items()}


def redact_command(command: Sequence[str]) -> list[str]:
    """Redact the values of flags with secret names in a command line."""
    redacted = []
    secret_follows = False
    for argument in command:
        if secret_follows and not argument.startswith("-"):
            redacted.append(MASK)
            secret_follows = False
            continue
        flag, equals, value = argument.partition("=")
        name = flag.lstrip("-")
        # The flag's value is not known yet: assume a text.
        secret_follows = not equals and flag.startswith("-") and is_secret(name, "a text")
        if equals and "://" not in flag and is_secret(name, value):
            redacted.append(f"{flag}={MASK}")
        else:
            redacted.append(redact_text(argument))
    return redacted


def is_secret(name: str, value: Any) -> bool:
    """Return whether a parameter is secret, judging by its name and value."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or value is None or isinstance(value, bool) or value == "":
        return False
    if _ALWAYS_SECRET.intersection(words):  # also of a URL, but not that of a model
        return not (name == "signature" and re.fullmatch("[a-z]+(_[a-z]+)*", str(value)))
    return words[-1] in _SECRET_AT_END and not _SMALL_NUMBER.match(str(value))


def _redact_param(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return redact_params(value)
    if isinstance(value, list | tuple):
        return [_redact_param(name, item) for item in value]
    return MASK if is_secret(name, value) else redact_value(value)


def _redact_pair(match: re.Match[str]) -> str:
    name, value = match.groups()
    return f"{name}={MASK}" if is_secret(name, value) else match.group(0)
