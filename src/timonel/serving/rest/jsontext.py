"""JSON text to Python values, as lenient and with the same complaints as TensorFlow Serving.

The strict and fast parser comes first. What it refuses goes to a lenient one, which also takes
NaN, Infinity and Inf as bare tokens and strings that are no UTF-8, and stops after the first
complete value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from timonel.serving.rest.decimals import decimal_text, shortest_text
from timonel.serving.rest.rapidjson import first_error
from timonel.serving.status import StatusError, invalid_argument

_ECHO_LIMIT = 256
_SPACE = " \t\r\n"
_UINT64_DIGITS = 20
# Bare Inf and -NaN outside of strings; a string is matched first, and so stepped over, as a whole.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|\bInf\b|-NaN\b', re.DOTALL)
_TOKEN = {"Inf": "Infinity", "-NaN": "NaN"}
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_TYPES = {dict: "Object", list: "Array", str: "String", int: "Number", float: "Number"}
_ESCAPES = {
    **{code: f"\\u{code:04X}" for code in range(0x20)},
    **{
        ord(plain): rf"\{letter}" for plain, letter in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)
    },
}


def parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object in ``body``.

    Bytes of a string that are no UTF-8 are surrogates in it, as by ``surrogateescape``.

    Raises:
        StatusError: The text is no JSON, or no object.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = _parse_leniently(body)
    if not isinstance(value, dict):
        raise invalid_argument(f"JSON Value: {echo(value)} Is not object")
    return value


def echo(value: object) -> str:
    """Return a value as indented JSON for an error message, cut where it gets long."""
    if isinstance(value, float):
        return decimal_text(value)
    pieces: list[str] = []
    length = 0
    for piece in _pretty(value, "\n"):
        pieces.append(piece)
        length += len(piece)
        if length > _ECHO_LIMIT:
            break
    text = "".join(pieces).encode("utf-8", "replace")
    if len(text) <= _ECHO_LIMIT:
        return text.decode()
    return text[:_ECHO_LIMIT].decode(errors="ignore") + "..."


def quote(text: str) -> str:
    """Return a JSON string; what is not ASCII stays as it is."""
    return f'"{text.translate(_ESCAPES)}"'


def type_name(value: object) -> str:
    """Return what JSON calls the type of a value."""
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return "True" if value else "False"
    return _TYPES[type(value)]


def _pretty(value: object, margin: str) -> Iterator[str]:
    """Yield the pieces of a value; ``margin`` is a new line with its indentation."""
    if isinstance(value, dict):
        members = ((f"{quote(name)}: ", member) for name, member in value.items())
        yield from _enclosed("{}", members, margin)
    elif isinstance(value, list):
        yield from _enclosed("[]", (("", element) for element in value), margin)
    elif isinstance(value, str):
        # No more than is shown: a string may be an image.
        yield quote(value[: _ECHO_LIMIT + 1])
    elif isinstance(value, float):
        yield shortest_text(value)
    else:
        yield json.dumps(value)


def _enclosed(brackets: str, items: Iterable[tuple[str, object]], margin: str) -> Iterator[str]:
    yield brackets[0]
    inner = margin + "    "
    empty = True
    for name, item in items:
        yield f"{'' if empty else ','}{inner}{name}"
        yield from _pretty(item, inner)
        empty = False
    yield brackets[1] if empty else margin + brackets[1]


def _parse_leniently(body: bytes) -> Any:
    if not body:
        raise invalid_argument("JSON Parse error: The document is empty")
    text = body.decode("utf-8-sig", "surrogateescape")
    text = _TOKENS.sub(lambda found: _TOKEN.get(found.group(), found.group()), text)
    start = len(text) - len(text.lstrip(_SPACE))
    try:
        value = _LENIENT.raw_decode(text, start)[0]
    except ValueError:
        # A JSONDecodeError, or a number that is too big.
        raise _parse_error(body) from None
    except RecursionError:
        raise invalid_argument("JSON Parse error: The document is nested too deeply") from None
    if _LONE_SURROGATE.search(body) and first_error(body):
        raise _parse_error(body)
    return value


def _parse_error(body: bytes) -> StatusError:
    reason, offset = first_error(body) or ("Invalid value.", 0)
    return invalid_argument(f"JSON Parse error: {reason} at offset: {offset}")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _integer(text: str) -> int | float:
    # What no 64 bits hold is a double, as to the strict parser.
    value = int(text) if len(text) <= _UINT64_DIGITS else _float(text)
    return value if -(2**63) <= value < 2**64 else _float(text)


_LENIENT = json.JSONDecoder(parse_float=_float, parse_int=_integer)
