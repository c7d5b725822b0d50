"""Parse the traffic rules of ``timonel endpoints split``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timonel.errors import SpecError


def percentages(words: Sequence[str]) -> dict[int, int]:
    """Parse percentages by version, such as ``3=90 4=10``."""
    shares: dict[int, int] = {}
    for word in words:
        version, _, percent = word.partition("=")
        if not (version.isdecimal() and percent.isdecimal()) or int(version) in shares:
            raise SpecError(
                f"expected VERSION=PERCENT, each version once, got {word!r}",
                hint="write 3=90 4=10, say",
            )
        shares[int(version)] = int(percent)
    return shares


def rules(
    labels: Sequence[str],
    matches: Sequence[str],
    cookie: str | None,
    header: str | None,
    shadow: str | None,
) -> dict[str, Any]:
    """Return the given rules as fields of `Traffic`.

    Args:
        labels: ``LABEL=VERSION``.
        matches: ``HEADER=VALUE:VERSION``.
        cookie: Name of the cookie by which clients keep their version.
        header: Name of the header by which they do.
        shadow: ``VERSION`` or ``VERSION=PERCENT`` that gets copies of requests.
    """
    found: dict[str, Any] = {}
    if labels:
        found["labels"] = dict(_label(text) for text in labels)
    if matches:
        found["matches"] = [_match(text) for text in matches]
    if cookie is not None or header is not None:
        found["sticky"] = {"cookie": cookie, "header": header}
    if shadow is not None:
        version, _, percent = shadow.partition("=")
        found["shadow"] = {
            "version": _number(version, shadow, "VERSION or VERSION=PERCENT", "4=50"),
            "percent": _number(percent or "100", shadow, "VERSION or VERSION=PERCENT", "4=50"),
        }
    return found


def _label(text: str) -> tuple[str, int]:
    label, _, version = text.partition("=")
    return label, _number(version, text, "LABEL=VERSION", "canary=4")


def _match(text: str) -> dict[str, Any]:
    header, equals, rest = text.partition("=")
    value, _, version = rest.rpartition(":")
    number = _number(version if equals else "", text, "HEADER=VALUE:VERSION", "x-team=vision:4")
    return {"header": header, "value": value, "version": number}


def _number(text: str, whole: str, expected: str, example: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise SpecError(f"expected {expected}, got {whole!r}", hint=f"write {example}, say")
    return int(text)
