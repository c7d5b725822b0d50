"""Records of tf.train.Example as a table: one column per feature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timonel.data.manifest import Rejected
from timonel.data.sources.recordfiles import Example, RecordFile
from timonel.data.sources.tablefile import TableFile, named_places
from timonel.errors import DataError
from timonel.storage.location import Location

_CHUNK = 10_000


def read_record_table(location: Location) -> TableFile:
    """Read a TFRecord file as rows.

    A feature without values is a missing value. Damaged records are rejected.

    Raises:
        DataError: The file is cut off, or a feature has values of several types.
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
        raise DataError(f"{location} has no records")
    return TableFile(
        table=pa.table({name: _values(lists[name]) for name in sorted(lists.column_names)}),
        name=location.name,
        digest=location.digest(),
        bytes=location.local.stat().st_size,
        modified=location.modified(),
        places=named_places("record"),
        rejected=rejected,
    )


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


def _values(column: Any) -> Any:
    """Return single values if no record has several, else lists; text where it is UTF-8."""
    lists = column.combine_chunks()
    if pa.types.is_null(lists.type):
        return lists
    flat, lengths = _as_text(lists.flatten()), pc.fill_null(pc.list_value_length(lists), 0)
    counts = lengths.to_numpy()
    ends = np.cumsum(counts)
    if counts.max(initial=0) > 1:
        offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
        return pa.ListArray.from_arrays(offsets, flat)
    return pc.take(flat, pa.array(ends - counts, mask=counts == 0))


def _as_text(values: Any) -> Any:
    if not pa.types.is_binary(values.type):
        return values
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return values
