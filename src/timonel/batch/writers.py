"""Write predictions as Parquet, JSON lines, CSV or TFRecord, and join the files of shards."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import IO, Any, cast, get_args

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from timonel.batch.plan import OutputFormat
from timonel.batch.tables import Column
from timonel.data.examples import encode_example
from timonel.data.records import frame
from timonel.data.sources.arrow import plain
from timonel.data.sources.columns import NUMBER, trim
from timonel.errors import DataError, SpecError

Columns = Mapping[str, Column | Any]
"""Columns of the output: lists, arrays of Arrow, or arrays of NumPy [B, ...]."""

_FORMULA = "^(\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\\t\\r\\n])"
"""With the full-width signs, which spreadsheets in some languages take for these."""
_GROUP_BYTES = 32 << 20
_ENDINGS: Mapping[str, OutputFormat] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tfrecord": "tfrecord",
}


def output_format(path: PurePath, given: str | None) -> tuple[OutputFormat, bool]:
    """Return the format of the output, and whether it is a folder of shards."""
    by_name = _ENDINGS.get(path.suffix.lower())
    if given is not None and given not in get_args(OutputFormat):
        raise SpecError(f"expected one of the formats {_known()}, got {given!r}")
    if given is None and by_name is None and path.suffix:
        raise SpecError(
            f"the name {path.name} shows no format", hint=f"use one of {', '.join(_ENDINGS)}"
        )
    if given is not None and by_name is not None and given != by_name:
        raise SpecError(f"{path.name} is not the name of a {given} file")
    return cast("OutputFormat", given or by_name or "parquet"), by_name is None


def _known() -> str:
    return ", ".join(get_args(OutputFormat))


class Writer:
    """Writer of the predictions of one shard.

    Args:
        raw: Write texts that look like formulas to CSV as they are.
    """

    def __init__(self, file: IO[bytes], format_: OutputFormat, *, raw: bool = False) -> None:
        self._raw = raw
        self._file = file
        self._format = format_
        self._parquet: pq.ParquetWriter | None = None
        self._batches: list[pa.Table] = []
        self.rows = 0

    def add(self, columns: Columns) -> None:
        """Write the rows of a batch."""
        is_first, count = self.rows == 0, len(next(iter(columns.values())))
        self.rows += count
        if self._format == "parquet":
            self._batches.append(_table(columns))
            if sum(batch.nbytes for batch in self._batches) >= _GROUP_BYTES:
                self._flush()
        elif self._format == "csv":
            options = pacsv.WriteOptions(include_header=is_first)
            table = _table({k: _flat(k, v) for k, v in columns.items()})
            pacsv.write_csv(table if self._raw else _without_formulas(table), self._file, options)
        else:
            self._file.writelines(_LINES[self._format](columns))

    def close(self) -> None:
        """Write the rest."""
        self._flush()
        if self._parquet is not None:
            self._parquet.close()

    def _flush(self) -> None:
        if not self._batches:
            return
        table = join_tables(self._batches)
        self._batches = []
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._file, table.schema)
        self._parquet.write_table(table.cast(self._parquet.schema))


def join(parts: Sequence[Path], target: IO[bytes], format_: OutputFormat) -> None:
    """Join the files of shards to one.

    Raises:
        DataError: Their columns have different types.
    """
    if format_ == "parquet":
        _join_parquet(parts, target)
        return
    for number, part in enumerate(parts):
        with part.open("rb") as file:
            if format_ == "csv" and number:
                _skip_header(file)
            shutil.copyfileobj(file, target, 1 << 20)


def _skip_header(file: IO[bytes]) -> None:
    """Skip the first row of a CSV file, whose quoted names may have line feeds."""
    quotes = 0
    for line in file:
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            return


def _join_parquet(parts: Sequence[Path], target: IO[bytes]) -> None:
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for part in parts:
            with pq.ParquetFile(part) as file:
                writer = writer or stack.enter_context(pq.ParquetWriter(target, file.schema_arrow))
                for group in range(file.num_row_groups):
                    writer.write_table(_cast(file.read_row_group(group), writer.schema))


def join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one table with the rows of all."""
    return pa.concat_tables([_cast(table, tables[0].schema) for table in tables]).combine_chunks()


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    try:
        return table.cast(schema)
    except (pa.ArrowInvalid, ValueError) as error:
        raise DataError(
            f"the types of the predictions differ between rows: {error}",
            hint="write JSON lines (--format jsonl)",
        ) from error


def _table(columns: Columns) -> pa.Table:
    return pa.table({name: to_arrow(name, column) for name, column in columns.items()})


def to_arrow(name: str, column: Column | Any) -> pa.Array:
    """Return a column as an array of Arrow; outputs of more than one dimension as lists.

    Text is UTF-8, except in an output named ``*_bytes``.
    """
    if isinstance(column, pa.Array):
        return column
    if not isinstance(column, np.ndarray):
        return pa.array(column)
    if column.dtype == object:
        values = pa.array(column.reshape(-1), pa.binary())
        flat = values if name.endswith("_bytes") else values.cast(pa.string())
    else:
        known = column if column.dtype.kind in "biuf" else column.astype(np.float32)  # bfloat16
        flat = pa.array(np.ascontiguousarray(known).reshape(-1))
    for size in reversed(column.shape[1:]):
        rows = len(flat) // size if size else len(column)
        flat = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * size), flat)
    return flat


def _flat(name: str, column: Column | Any) -> Any:
    """Return a column for CSV: lists as JSON text, bytes as base64."""
    if isinstance(column, pa.Array):
        column = plain(column)
    is_text = isinstance(column, np.ndarray) and column.dtype == object
    if is_text and column.ndim == 1 and name.endswith("_bytes"):
        return _base64(column)
    if is_text or (isinstance(column, np.ndarray) and column.ndim > 1):
        return [_cell(each) for each in column]
    if isinstance(column, pa.Array) and _is_bytes(column.type):
        return _base64(column.to_pylist())
    if isinstance(column, pa.Array) and pa.types.is_nested(column.type):
        return [_cell(each) for each in column.to_pylist()]
    return column


def _without_formulas(table: pa.Table) -> pa.Table:
    """Return a table whose texts no spreadsheet takes for formulas; signed numbers are none."""
    columns = {}
    for name in table.column_names:
        column = table[name]
        if pa.types.is_string(column.type):
            starts = pc.match_substring_regex(column, _FORMULA)
            is_formula = pc.and_not(starts, pc.match_substring_regex(trim(column), NUMBER))
            if pc.any(is_formula).as_py():
                quoted = pc.binary_join_element_wise("'", column, "")
                column = pc.if_else(is_formula, quoted, column)
        columns[f"'{name}" if re.match(_FORMULA, name) else name] = column
    return pa.table(columns)


def _is_bytes(kind: Any) -> bool:
    is_variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    is_view = pa.types.is_binary_view(kind)
    return bool(is_variable or is_view or pa.types.is_fixed_size_binary(kind))


def _base64(values: Iterable[bytes | None]) -> list[str | None]:
    return [None if each is None else base64.b64encode(each).decode() for each in values]


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=_json).decode()


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)


def _json_lines(columns: Columns) -> Iterator[bytes]:
    names = list(columns)
    for row in zip(*map(_values, columns.values()), strict=True):
        content = dict(zip(names, row, strict=True))
        yield orjson.dumps(
            content,
            option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE,
            default=_json,
        )


def _examples(columns: Columns) -> Iterator[bytes]:
    names = list(columns)
    for row in zip(*map(_values, columns.values()), strict=True):
        features = {name: _feature(value) for name, value in zip(names, row, strict=True)}
        yield b"".join(frame(encode_example(features)))


def _values(column: Column | Any) -> Any:
    return column.to_pylist() if isinstance(column, pa.Array) else column


def _feature(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return []
    is_list = isinstance(value, list)
    if all(isinstance(each, bytes | str | int | float) for each in (value if is_list else [value])):
        return value
    return json.dumps(value, default=_json)


_LINES: Mapping[str, Callable[[Columns], Iterator[bytes]]] = {
    "jsonl": _json_lines,
    "tfrecord": _examples,
}
