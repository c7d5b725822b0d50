"""Formats of files with rows, by the endings of their names, or by their first bytes."""

from __future__ import annotations

import re
from typing import Literal

from timonel.data.records import starts_with_record
from timonel.storage.location import COMPRESSED_ENDINGS, Location

TableFormat = Literal["csv", "jsonl", "parquet", "arrow", "tfrecord"]

_COMPRESSED = "|".join(map(re.escape, COMPRESSED_ENDINGS))
_NAMES: dict[TableFormat, str] = {
    "csv": rf"\.(csv|tsv)({_COMPRESSED})?$",
    "jsonl": rf"\.(jsonl|ndjson|json)({_COMPRESSED})?$",
    "parquet": r"\.(parquet|pq)$",
    "arrow": r"\.arrow$",
    # TensorFlow's shards are named data.tfrecord-00000-of-00010, those of TF-Slim without ending.
    "tfrecord": r"(\.(tfrecords?|tfrec|record)((\.gz)?(-\d+-of-\d+)?|-\d+-of-\d+\.gz)"
    r"|^[^.]+-\d+-of-\d+(\.gz)?)$",
}


def table_format(name: str) -> TableFormat | None:
    """Return the format that the name of a file shows, or None."""
    found = (kind for kind, pattern in _NAMES.items() if re.search(pattern, name.lower()))
    return next(found, None)


def file_format(file: Location) -> TableFormat | None:
    """Return the format of a file; TFRecords on this machine may have any name."""
    found = table_format(file.name)
    if found is not None or not file.is_local or not file.path.is_file():
        return found
    return "tfrecord" if starts_with_record(file.path) else None
