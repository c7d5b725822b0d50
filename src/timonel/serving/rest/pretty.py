"""Results laid out in lines as TensorFlow Serving lays them out. Pure.

Its writer indents by four blanks, but for lists inside of rows, which stay on one line; the list
of rows itself ends on a line of its own, which looks odd and is how it is. Texts may hold
surrogates for bytes that are no UTF-8.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from timonel.serving.rest.decimals import decimal_texts
from timonel.serving.rest.jsontext import quote
from timonel.serving.runtimes.base import Array

_BYTES_SUFFIX = "_bytes"
Join = Callable[[Sequence[str], int], str]
"""Texts of elements, and how many lists and objects are around their list, to the list's text."""


def rows_text(outputs: Mapping[str, Array]) -> str:
    """Return the answer to a row-wise request."""
    if len(outputs) == 1:
        rows = _rows(*next(iter(outputs.items())), level=2)
        inside = ", ".join(rows)
    else:
        columns = [
            [f"{quote(name)}: {value}" for value in _rows(name, array, level=3)]
            for name, array in outputs.items()
        ]
        rows = [_object(row, 2) for row in zip(*columns, strict=True)]
        inside = _line(2) + f",{_line(2)}".join(rows) if rows else ""
    end = _line(1) if rows else ""
    return _object([f'"predictions": [{inside}{end}]'], 0)


def columns_text(outputs: Mapping[str, Array]) -> str:
    """Return the answer to a columnar request."""
    if len(outputs) == 1:
        text = _value(*next(iter(outputs.items())), level=1)
    else:
        members = (
            f"{quote(name)}: {_value(name, array, level=2)}" for name, array in outputs.items()
        )
        text = _object(list(members), 1)
    return _object([f'"outputs": {text}'], 0)


def classes_text(examples: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return the answer to Classify, from labels and the texts of scores."""
    lists = (
        "[" + ", ".join(f"[{quote(label)}, {score}]" for label, score in classes) + "]"
        for classes in examples
    )
    return _object([f'"results": [{", ".join(lists)}{_line(1)}]'], 0)


def values_text(values: Sequence[str]) -> str:
    """Return the answer to Regress, from the texts of values."""
    return _object([f'"results": [{", ".join(values)}]'], 0)


def error_text(message: str) -> str:
    """Return the body of an answer that is an error."""
    return _object([f'"error": {quote(message)}'], 0)


def _rows(name: str, array: Array, level: int) -> list[str]:
    texts = _elements(name, array, level + array.ndim - 1)
    return _joined(texts, array.shape, 1, level, _on_one_line)


def _value(name: str, array: Array, level: int) -> str:
    texts = _elements(name, array, level + array.ndim)
    return _joined(texts, array.shape, 0, level, _on_lines)[0]


def _joined(
    texts: list[str], shape: Sequence[int], outer: int, level: int, join: Join
) -> list[str]:
    """Join elements to lists along all axes but the first ``outer`` ones."""
    for axis in reversed(range(outer, len(shape))):
        size = shape[axis]
        texts = [
            join(texts[start * size : (start + 1) * size], level + axis - outer)
            for start in range(math.prod(shape[:axis]))
        ]
    return texts


def _on_one_line(texts: Sequence[str], _level: int) -> str:
    return "[" + ", ".join(texts) + "]"


def _on_lines(texts: Sequence[str], level: int) -> str:
    if not texts:
        return "[]"
    return "[" + _line(level + 1) + f",{_line(level + 1)}".join(texts) + _line(level) + "]"


def _elements(name: str, array: Array, level: int) -> list[str]:
    if array.dtype.kind == "f":
        return decimal_texts(array)
    flat = array.reshape(-1).tolist()
    if array.dtype == np.bool_:
        return ["true" if value else "false" for value in flat]
    if array.dtype != object:
        return list(map(str, flat))
    if not name.endswith(_BYTES_SUFFIX):
        return [quote(value.decode("utf-8", "surrogateescape")) for value in flat]
    return [_object([f'"b64": "{base64.b64encode(value).decode()}"'], level) for value in flat]


def _object(members: Sequence[str], level: int) -> str:
    return "{" + _line(level + 1) + f",{_line(level + 1)}".join(members) + _line(level) + "}"


def _line(level: int) -> str:
    return "\n" + "    " * level
