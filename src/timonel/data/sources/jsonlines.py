"""Read JSON lines: one JSON object per line, one column per name."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from timonel.data.manifest import Rejected
from timonel.data.schema import ColumnType, columns_option
from timonel.data.sources.arrow import text_of
from timonel.data.sources.columns import shorten
from timonel.data.sources.tablefile import TableFile
from timonel.data.sources.textfile import TextFile
from timonel.errors import DataError

_BLOCK_BYTES = 1 << 24
_DEEP = 500
_INT64 = 2**63
_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "text"}
_NESTED = "a list or an object"
_NO_OBJECT = "not a JSON object"
_ONE_PER_LINE = "write one object per line, as df.to_json(orient='records', lines=True) does"


def read_json_lines(text: TextFile, columns: Mapping[str, ColumnType] | None = None) -> TableFile:
    """Read a file of JSON lines.

    Lines that are not JSON objects are rejected. A name that is missing in a line is a missing
    value. Columns given as categories or text have the words of their values.
    """
    bad: dict[int, str] = {}
    try:
        _check_depth(text)
        table = _parse(text.open)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        bad, content = _checked(text)
        if not content or _starts_array(text, bad):
            first = "".join(f"; line {each:,}: {bad[each]}" for each in list(bad)[:1])
            message = f"{text.location} has no lines with JSON objects{first}"
            raise DataError(message, hint=_ONE_PER_LINE) from error
        try:
            table = _parse(partial(io.BytesIO, content))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            table = _parse_mixed(text, content, columns or {})

    def places(rows: Collection[int]) -> dict[int, str]:
        numbers = (number for number, _ in _lines(text) if number not in bad)
        asked, last = set(rows), max(rows, default=-1)
        found = enumerate(itertools.islice(numbers, last + 1))
        return {row: f"line {number:,}" for row, number in found if row in asked}

    name = text.location.name
    return TableFile.of(
        text.location,
        table,
        places=places,
        rejected=[
            Rejected(key=f"{name} line {number}", reason=reason) for number, reason in bad.items()
        ],
        notes=text.notes,
        warnings=[*text.warnings, *_rounded(text, table)],
    )


def first_texts(text: TextFile, rows: int) -> dict[str, list[str]]:
    """Return the names in the first objects, and their values that are texts."""
    found: dict[str, list[str]] = {}
    for _, line in itertools.islice(_lines(text), rows):
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            for name, each in value.items() if isinstance(value, dict) else ():
                found.setdefault(name, []).extend([each] if isinstance(each, str) else [])
    return found


def _parse(open_: Callable[[], BinaryIO]) -> Any:
    options = pajson.ReadOptions(block_size=_BLOCK_BYTES)
    with open_() as file:
        table = pajson.read_json(file, read_options=options)
    # Arrow takes texts such as 2024-01-31 for dates, whose text would be another.
    texts = [each for each in map(_with_texts, table.schema) if each is not None]
    if not texts:
        return table
    with open_() as file:
        parsing = pajson.ParseOptions(explicit_schema=pa.schema(texts))
        found = pajson.read_json(file, read_options=options, parse_options=parsing)
    return found.select(table.column_names)


def _with_texts(field: Any) -> Any | None:
    """Return a field with texts instead of dates; None if it has no dates."""
    kind = field.type
    if pa.types.is_temporal(kind):
        return field.with_type(pa.string())
    if pa.types.is_list(kind):
        inner = _with_texts(kind.value_field)
        return None if inner is None else field.with_type(pa.list_(inner))
    if pa.types.is_struct(kind):
        inners = [_with_texts(each) for each in kind]
        if any(inners):
            fields = [new or old for new, old in zip(inners, kind, strict=True)]
            return field.with_type(pa.struct(fields))
    return None


def _check_depth(text: TextFile) -> None:
    """Raise an error of Arrow for a line that may be nested so deeply that it would crash Arrow."""
    if any(line.count(b"[") + line.count(b"{") > _DEEP for _, line in _lines(text)):
        raise pa.ArrowInvalid("nested too deeply")


def _lines(text: TextFile) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    with text.open() as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _checked(text: TextFile) -> tuple[dict[int, str], bytes]:
    """Return the reasons of unusable lines by number, and the content of the others."""
    bad: dict[int, str] = {}
    good = []
    for number, line in _lines(text):
        try:
            value = json.loads(
                line.decode(),
                parse_constant=_refuse,
                parse_float=_finite,
                object_pairs_hook=_distinct,
            )
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            bad[number] = "not valid JSON: half of a pair of surrogates"
            continue
        except (ValueError, RecursionError) as error:
            bad[number] = f"not valid JSON: {getattr(error, 'msg', error)}"
            continue
        if isinstance(value, dict):
            good.append(line)
        else:
            bad[number] = _NO_OBJECT
    return bad, b"".join(good)


def _parse_mixed(text: TextFile, content: bytes, columns: Mapping[str, ColumnType]) -> Any:
    """Return the table of lines in which given columns have values of several types."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for row in map(json.loads, io.BytesIO(content)):
        for name in row.keys() & columns.keys():
            kinds[name] |= {_kind(row[name])} if row[name] is not None else set()
    # Other columns keep their types, and rows that have a dropped one their splits.
    mixed = {n: columns[n] for n, found in kinds.items() if len(found) > 1 or _NESTED in found}
    lines = []
    for row in map(json.loads, io.BytesIO(content)):
        words = {name: _word(row[name], role) for name, role in mixed.items() if name in row}
        lines.append(json.dumps({**row, **words}).encode())
    try:
        return _parse(partial(io.BytesIO, b"\n".join(lines)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _conflict(text, mixed, error) from error


def _word(value: Any, role: ColumnType | None) -> Any:
    """Return the word of a value in a column of words; any text in a dropped column."""
    if role == "drop" and value is not None:
        return json.dumps(value)
    is_word = role in {"categorical", "text"} and isinstance(value, int | float)
    return text_of(value) if is_word else value


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), _NESTED)


def _starts_array(text: TextFile, bad: Mapping[int, str]) -> bool:
    """Tell whether a JSON array begins in the first line and ends in another."""
    number, line = next(_lines(text))
    return line.lstrip().startswith(b"[") and bad.get(number, _NO_OBJECT) != _NO_OBJECT


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a JSON value; write null")


def _finite(word: str) -> float:
    if math.isinf(number := float(word)):
        raise ValueError(f"{word} is too large for a number")
    return number


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is repeated")
    return found


def _rounded(text: TextFile, table: Any) -> Iterator[str]:
    """Yield a warning for each column with integers that Arrow reads as floats."""
    floats = [each.name for each in table.schema if pa.types.is_floating(each.type)]
    names = {name for name in floats if (pc.max(pc.abs(table[name])).as_py() or 0) >= _INT64}
    for number, line in _lines(text) if names else ():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            for name in names & row.keys() if isinstance(row, dict) else ():
                if isinstance(row[name], int) and abs(row[name]) >= _INT64:
                    names.remove(name)
                    yield (
                        f"column {name}: integers beyond 64 bits are read as rounded numbers, such "
                        f"as {shorten(str(row[name]))} in line {number:,}: write them as text"
                    )


def _conflict(text: TextFile, words: Mapping[str, ColumnType], error: Exception) -> DataError:
    """Return the error for the first value whose type differs from those before."""
    seen: dict[str, str] = {}
    for number, line in _lines(text):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        for name, value in row.items() if isinstance(row, dict) else ():
            kind = _kind(_word(value, words.get(name)))
            if value is not None and seen.setdefault(name, kind) != kind:
                return DataError(
                    f"expected {seen[name]} in column {name!r} of {text.location}, as in the lines "
                    f"before, got {kind} in line {number}: {shorten(json.dumps(value))}",
                    hint="correct it, write null, or read the column as words with "
                    f"{columns_option(name, 'category')}, or =text",
                )
    return DataError(f"cannot read {text.location}: {' '.join(str(error).split())}")
