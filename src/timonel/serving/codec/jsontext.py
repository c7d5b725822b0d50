"""Parse JSON as leniently as TensorFlow Serving.

A strict and fast parser runs first. Text that it rejects goes to Python's parser, which also
accepts NaN, Infinity and Inf, each with an optional minus, as bare tokens and strings that are not
UTF-8, and stops after the first complete value.

Both parsers hold the GIL until they are done and create an object for every value. A text is
therefore limited to `MAX_TOKENS`: at that limit parsing takes a tenth of a second and 100 MiB.
"""

from __future__ import annotations

import codecs
import itertools
import json
import math
import re
import threading
from typing import Any

import orjson

from timonel.serving.futures import AT_ONCE_BYTES
from timonel.serving.status import invalid_argument

_ECHO_LIMIT = 256
_SPACE = b" \t\r\n"
_UINT64_DIGITS = 20
_MAX_DIGITS = 10_000
"""A double has at most 309 digits before the point."""
MAX_TOKENS = 500_000
"""Limit of commas, colons and opening brackets in a text.

Arrays of numbers read by `read_outline` do not count.
"""
STEP_BYTES = 2**20
_TOKENS = (b",", b":", b"[", b"{")
_LENIENT_BYTES = 2**21
"""Size limit of the lenient parser, which is slow on some texts.

Longer texts must be strict JSON, except for NaN and Infinity in regular arrays of numbers.
"""
_INDENTED = json.JSONEncoder(ensure_ascii=False, indent=4)
_large = threading.Lock()
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_WORDS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|Inf(?!inity)|-NaN', re.DOTALL)
_TYPES = {dict: "Object", list: "Array", str: "String", int: "Number", float: "Number"}


def parse(body: bytes) -> dict[str, Any]:
    """Parse the JSON object in ``body``, bytes that are not UTF-8 as with ``surrogateescape``."""
    try:
        value = parse_strictly(body)
    except orjson.JSONDecodeError as error:
        if len(body) > _LENIENT_BYTES:
            raise invalid_argument(
                f"JSON Parse error: {error.msg} at offset: {error.pos}"
            ) from None
        value = _parse_leniently(body)
    if not isinstance(value, dict):
        raise invalid_argument(f"JSON Value: {echo(value)} Is not object")
    return value


def parse_strictly(text: bytes) -> Any:
    """Parse strict JSON."""
    _check_tokens(text)
    if len(text) <= _LENIENT_BYTES:
        return orjson.loads(text)
    # One at a time: other threads would wait for the GIL and get it before the event loop.
    with _large:
        return orjson.loads(text)


def echo(value: object) -> str:
    """Format a value as indented JSON for errors, truncated if long."""
    pieces: list[str] = []
    length = 0
    for piece in _INDENTED.iterencode(_beginning(value)):
        pieces.append(piece)
        length += len(piece)
        if length > _ECHO_LIMIT:
            break
    text = "".join(pieces).encode("utf-8", "replace")
    if len(text) <= _ECHO_LIMIT:
        return text.decode()
    return text[:_ECHO_LIMIT].decode(errors="ignore") + "..."


def _beginning(value: object) -> object:
    """Return a value with as much of its content as an echo shows: strings may have megabytes."""
    left = _ECHO_LIMIT

    def cut(part: Any) -> Any:
        nonlocal left
        left -= 1
        if isinstance(part, str):
            return part[:_ECHO_LIMIT]
        if isinstance(part, list):
            return [cut(each) for each in itertools.takewhile(lambda _: left > 0, part)]
        if isinstance(part, dict):
            shown = itertools.takewhile(lambda _: left > 0, part.items())
            return {cut(name): cut(each) for name, each in shown}
        return part

    return cut(value)


def type_name(value: object) -> str:
    """Return the JSON name of a value's type."""
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return "True" if value else "False"
    return _TYPES[type(value)]


def _check_tokens(text: bytes) -> None:
    if len(text) <= AT_ONCE_BYTES:
        return
    count = 0
    # In steps: other threads run between them, but not during a method of bytes.
    for start in range(0, len(text), STEP_BYTES):
        end = start + STEP_BYTES
        count += sum(text.count(token, start, end) for token in _TOKENS)
        if count > MAX_TOKENS:
            raise invalid_argument(
                f"The JSON has more than {MAX_TOKENS} values outside regular arrays of numbers. "
                "Send fewer instances in a request, or send tensors over gRPC."
            )


def _parse_leniently(body: bytes) -> Any:
    if not body:
        raise invalid_argument("JSON Parse error: The document is empty")
    text = body.removeprefix(codecs.BOM_UTF8).lstrip(_SPACE)
    start = len(body) - len(text)
    try:
        spelled = _WORDS.sub(_python_word, text.decode(errors="surrogateescape"))
        value = _LENIENT.raw_decode(spelled)[0]
    except json.JSONDecodeError as error:
        offset = start + error.pos
        raise invalid_argument(f"JSON Parse error: {error.msg} at offset: {offset}") from None
    except ValueError as error:
        raise invalid_argument(f"JSON Parse error: {error}") from None
    except RecursionError:
        raise invalid_argument("JSON Parse error: The document is nested too deeply") from None
    if b"\\u" in body and _LONE_SURROGATE.search(body):
        raise invalid_argument("JSON Parse error: The surrogate pair in string is invalid")
    return value


def _python_word(found: re.Match[str]) -> str:
    """Return a number as Python's parser spells it; strings unchanged."""
    return {"Inf": "Infinity", "-NaN": " NaN"}.get(found[0], found[0])


def _float(text: str) -> float:
    if len(text) > _MAX_DIGITS:
        raise ValueError("A number has too many digits")
    value = float(text)
    if math.isinf(value):
        raise ValueError("A number is too large for a double")
    return value


def _integer(text: str) -> int | float:
    # Integers beyond 64 bits become doubles, as in the strict parser.
    value = int(text) if len(text) <= _UINT64_DIGITS else _float(text)
    return value if -(2**63) <= value < 2**64 else _float(text)


_LENIENT = json.JSONDecoder(parse_float=_float, parse_int=_integer)
