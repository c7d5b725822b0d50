"""JSON text to Python values, as lenient and with the same complaints as TensorFlow Serving.

The strict and fast parser comes first. What it refuses goes to a lenient one, which also takes
NaN, Infinity and Inf as bare tokens, and stops after the first complete value.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from timonel.serving.status import StatusError, invalid_argument

_ECHO_LIMIT = 256
_SPACE = b" \t\r\n"
# Bare Inf outside of strings; a string is matched first, and so stepped over, as a whole.
_INF = re.compile(r'"(?:[^"\\]|\\.)*"|\bInf\b', re.DOTALL)
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_REASONS = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Illegal trailing comma before end of object": "Missing a name for object member.",
    "Illegal trailing comma before end of array": "Invalid value.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Invalid control character at": "Invalid encoding in string.",
}
_TYPES = {dict: "Object", list: "Array", str: "String", int: "Number", float: "Number"}


def parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object in ``body``.

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
    """Return a value as JSON for an error message, cut where it gets long."""
    text = json.dumps(value, indent=4, ensure_ascii=False)
    return text if len(text) <= _ECHO_LIMIT else text[:_ECHO_LIMIT] + "..."


def type_name(value: object) -> str:
    """Return what JSON calls the type of a value."""
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return "True" if value else "False"
    return _TYPES[type(value)]


def _parse_leniently(body: bytes) -> Any:
    if not body.strip(_SPACE):
        raise invalid_argument("JSON Parse error: The document is empty")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _parse_error("Invalid encoding in string.", error.start) from None
    text = _INF.sub(_long_inf, text)
    start = len(text) - len(text.lstrip(_SPACE.decode()))
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        raise _parse_error(_reason(error, text), offset) from None
    except RecursionError:
        raise invalid_argument("JSON Parse error: The document is nested too deeply") from None


def _long_inf(match: re.Match[str]) -> str:
    return "Infinity" if match.group() == "Inf" else match.group()


def _parse_error(reason: str, offset: int) -> StatusError:
    return invalid_argument(f"JSON Parse error: {reason} at offset: {offset}")


def _reason(error: json.JSONDecodeError, text: str) -> str:
    if error.msg.startswith("Expecting ',' delimiter"):
        if _innermost_bracket(text[: error.pos]) == "{":
            return "Missing a comma or } after an object member."
        return "Missing a comma or ] after an array element."
    return _REASONS.get(error.msg, error.msg)


def _innermost_bracket(text: str) -> str:
    open_: list[str] = []
    for match in _BRACKETS.finditer(text):
        bracket = match.group()
        if bracket in "[{":
            open_.append(bracket)
        elif bracket in "]}" and open_:
            open_.pop()
    return open_[-1] if open_ else ""
