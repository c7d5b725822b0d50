"""What the JSON parser of TensorFlow Serving, RapidJSON 1.1, says of a text that it refuses. Pure.

Clients match on its words and offsets. This is far slower than the parsers that read requests,
and is asked only about text that one of them refused.
"""

from __future__ import annotations

import math
import re
from typing import Final

_SPACE = re.compile(rb"[ \t\r\n]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_INTEGER = re.compile(rb"0|[1-9][0-9]*")
_DIGITS = re.compile(rb"[0-9]+")
# Elements of an array and the commas behind them, none of them too big: most of a large text. So
# many at once, as each is remembered. Not possessive: Python before 3.11.5 matches that wrongly
# (https://github.com/python/cpython/issues/106052).
_ELEMENTS = re.compile(
    rb"(?:-?(?:0|[1-9][0-9]{0,99})(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,2})?"
    rb"[ \t\r\n]*,[ \t\r\n]*){1,1000}"
)
_HEX = re.compile(rb"[0-9a-fA-F]*")
_BOM: Final = b"\xef\xbb\xbf"
_LITERALS = {b"n": b"null", b"t": b"true", b"f": b"false"}
_CLOSER = {b"[": b"]", b"{": b"}"}
_MISSING_COMMA = {
    b"[": "Missing a comma or ] after an array element.",
    b"{": "Missing a comma or } after an object member.",
}


def first_error(text: bytes) -> tuple[str, int] | None:
    """Return what is wrong with a text and at which byte; none if it starts with a JSON value.

    NaN, Inf and Infinity are values, as they are to TensorFlow Serving, and what follows the
    first value does not count.
    """
    try:
        _value(text)
    except _RefusedError as refused:
        return refused.reason, refused.offset
    return None


class _RefusedError(Exception):
    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


def _value(text: bytes) -> None:
    position = _skip(text, len(_BOM) if text.startswith(_BOM) else 0)
    if _peek(text, position) in {b"", b"\0"}:
        raise _RefusedError("The document is empty.", position)
    open_: list[bytes] = []
    while True:
        if open_ and open_[-1] == b"[" and (elements := _ELEMENTS.match(text, position)):
            position = elements.end()
        bracket = _peek(text, position)
        if bracket in _CLOSER:
            position = _skip(text, position + 1)
            if _peek(text, position) != _CLOSER[bracket]:
                open_.append(bracket)
                position = _name(text, position) if bracket == b"{" else position
                continue
            position += 1
        else:
            position = _scalar(text, position)
        position = _after_value(text, position, open_)
        if not open_:
            return


def _after_value(text: bytes, position: int, open_: list[bytes]) -> int:
    """Close what ends here; return where the next value starts."""
    while open_:
        position = _skip(text, position)
        found = _peek(text, position)
        if found == b",":
            position = _skip(text, position + 1)
            return _name(text, position) if open_[-1] == b"{" else position
        if found != _CLOSER[open_[-1]]:
            raise _RefusedError(_MISSING_COMMA[open_[-1]], position)
        open_.pop()
        position += 1
    return position


def _name(text: bytes, position: int) -> int:
    if _peek(text, position) != b'"':
        raise _RefusedError("Missing a name for object member.", position)
    position = _skip(text, _string(text, position))
    if _peek(text, position) != b":":
        raise _RefusedError("Missing a colon after a name of object member.", position)
    return _skip(text, position + 1)


def _scalar(text: bytes, position: int) -> int:
    first = _peek(text, position)
    if first == b'"':
        return _string(text, position)
    if first in _LITERALS:
        return _word(text, position, _LITERALS[first])
    return _number(text, position)


def _number(text: bytes, start: int) -> int:
    position = start + (_peek(text, start) == b"-")
    integer = _INTEGER.match(text, position)
    if integer is None:
        return _not_finite(text, position)
    position = integer.end()
    if _peek(text, position) == b".":
        position = _digits(text, position + 1, "Miss fraction part in number.")
    if _peek(text, position) in {b"e", b"E"}:
        position += 1
        position += _peek(text, position) in {b"+", b"-"}
        position = _digits(text, position, "Miss exponent in number.")
    if math.isinf(float(text[start:position])):
        raise _RefusedError("Number too big to be stored in double.", start)
    return position


def _not_finite(text: bytes, position: int) -> int:
    first = _peek(text, position)
    if first == b"N":
        return _word(text, position, b"NaN")
    if first != b"I":
        raise _RefusedError("Invalid value.", position)
    position = _word(text, position, b"Inf")
    return _word(text, position, b"inity") if _peek(text, position) == b"i" else position


def _digits(text: bytes, position: int, complaint: str) -> int:
    found = _DIGITS.match(text, position)
    if found is None:
        raise _RefusedError(complaint, position)
    return found.end()


def _word(text: bytes, position: int, word: bytes) -> int:
    for index, letter in enumerate(word):
        if text[position + index : position + index + 1] != bytes((letter,)):
            raise _RefusedError("Invalid value.", position + index)
    return position + len(word)


def _string(text: bytes, position: int) -> int:
    """Return the position behind a string; its bytes need not be UTF-8."""
    position += 1
    while True:
        plain = _PLAIN.match(text, position)
        position = plain.end() if plain else position
        found = _peek(text, position)
        if found == b'"':
            return position + 1
        if found == b"\\":
            position = _escape(text, position)
        elif found in {b"", b"\0"}:
            raise _RefusedError("Missing a closing quotation mark in string.", position)
        else:
            raise _RefusedError("Invalid escape character in string.", position)


def _escape(text: bytes, start: int) -> int:
    letter = _peek(text, start + 1)
    if letter and letter in b'"\\/bfnrt':
        return start + 2
    if letter != b"u":
        raise _RefusedError("Invalid escape character in string.", start)
    if not 0xD800 <= _hex(text, start + 2, start) <= 0xDBFF:
        return start + 6
    wrong_pair = _RefusedError("The surrogate pair in string is invalid.", start)
    if text[start + 6 : start + 8] != b"\\u":
        raise wrong_pair
    if not 0xDC00 <= _hex(text, start + 8, start) <= 0xDFFF:
        raise wrong_pair
    return start + 12


def _hex(text: bytes, position: int, escape: int) -> int:
    found = _HEX.match(text, position, position + 4)
    if found is None or found.end() - position < 4:
        raise _RefusedError("Incorrect hex digit after \\u escape in string.", escape)
    return int(found.group(), 16)


def _peek(text: bytes, position: int) -> bytes:
    return text[position : position + 1]


def _skip(text: bytes, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position
