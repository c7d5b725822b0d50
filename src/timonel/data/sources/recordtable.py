"""Records of tf.train.Example as a table: one column per feature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timonel.data.manifest import Manifest, Rejected
from timonel.data.schema import LABEL_FEATURE, Column, TableSchema
from timonel.data.sources.arrow import with_names
from timonel.data.sources.kinds.dates import MISSING_DATE
from timonel.data.sources.kinds.lists import BOX_VALUES, NO_CLASS
from timonel.data.sources.recordfiles import Example, RecordFile
from timonel.data.sources.tablefile import TableFile, named_places
from timonel.errors import DataError
from timonel.storage.location import Location

_CHUNK = 10_000
_SPLIT = "split"


def read_record_table(location: Location) -> TableFile:
    """Read a TFRecord file as rows with a list of values per feature; see `with_types`.

    Damaged records are rejected.
    """
    file = RecordFile(location)
    rejected: list[Rejected] = []
    try:
        chunks = [_lists(chunk) for chunk in _chunks(file, rejected)]
        lists = pa.concat_tables(chunks, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"a feature of {location} has values of several types: {error}",
            hint="write each feature with one type",
        ) from error
    if not lists.column_names:
        found = f"usable records: {rejected[0].reason}" if rejected else "records"
        raise DataError(f"{location} has no {found}")
    table = lists.select(sorted(lists.column_names))
    return TableFile.of(location, table, places=named_places("record"), rejected=rejected)


def _chunks(file: RecordFile, rejected: list[Rejected]) -> Iterator[list[Example]]:
    chunk: list[Example] = []
    for number, (_, example) in enumerate(file.records(), start=1):
        if isinstance(example, str):
            rejected.append(Rejected(key=f"{file.location.name} record {number}", reason=example))
            continue
        chunk.append(example)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    yield chunk


def _lists(chunk: list[Example]) -> Any:
    """Return a table with a list of values for each feature and record."""
    names = {name for example in chunk for name in example}
    return pa.table({name: [example.get(name) for example in chunk] for name in names})


def with_types(table: Any) -> Any:
    """Return the table of all files with a type for each feature.

    A feature has single values if no record has several, else lists; text where it is UTF-8. One
    without values is missing.
    """
    return pa.table({name: _values(table[name]) for name in table.column_names})


def columns_of_dataset(table: Any, manifest: Manifest) -> Any:
    """Return the records of a dataset of timonel with the columns of its source."""
    schema = manifest.record_schema
    assert isinstance(schema, TableSchema)
    named = {name: table[name] for name in {_SPLIT} & {*table.column_names}}
    labels = table[LABEL_FEATURE]
    label = labels if manifest.task == "multilabel" else _values(labels)
    named[schema.label] = with_names(label, manifest.labels) if manifest.labels else label
    for column in schema.columns:
        named[column.name] = _stored(table[column.feature], column)
    return pa.table(named)


def _stored(lists: Any, column: Column) -> Any:
    """Return the values of a column as its kind parses them."""
    lists = lists.combine_chunks()
    if pa.types.is_null(lists.type) or column.type in {"numbers", "image"}:
        return lists
    if column.type == "boxes":
        return pa.array([_boxes(values or []) for values in lists.to_pylist()])
    values = _first(lists, lists.flatten())
    if column.type == "date":
        known = pc.if_else(pc.equal(values, MISSING_DATE), None, values)
        return pc.cast(known, pa.timestamp("s", "UTC"))
    is_text = column.type in {"categorical", "text", "json"}
    return pc.cast(values, pa.string()) if is_text else values


def _boxes(values: list[float]) -> list[list[float]]:
    boxes = (values[start : start + BOX_VALUES] for start in range(0, len(values), BOX_VALUES))
    return [box[:-1] if box[-1] == NO_CLASS else box for box in boxes]


def _values(column: Any) -> Any:
    if not pa.types.is_list(column.type):
        return column
    lists = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    flat = _as_text(lists.flatten())
    if lengths.max(initial=0) > 1:
        return pa.ListArray.from_arrays(pa.array(_offsets(lengths), pa.int32()), flat)
    return _first(lists, flat)


def _first(lists: Any, flat: Any) -> Any:
    """Return the only value of each list, or null."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return pc.take(flat, pa.array(_offsets(lengths)[:-1], mask=lengths == 0))


def _offsets(lengths: Any) -> Any:
    return np.concatenate(([0], np.cumsum(lengths)))


def _as_text(values: Any) -> Any:
    if not pa.types.is_binary(values.type):
        return values
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return values
