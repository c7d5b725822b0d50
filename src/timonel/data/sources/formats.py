"""Formats of files with rows, by the endings of their names."""

from __future__ import annotations

import re
from typing import Literal

from timonel.storage.location import COMPRESSED_ENDINGS

TableFormat = Literal["csv", "jsonl", "parquet", "arrow", "tfrecord"]

_COMPRESSED = "|".join(map(re.escape, COMPRESSED_ENDINGS))
_NAMES: dict[TableFormat, str] = {
    "csv": rf"\.(csv|tsv)({_COMPRESSED})?$",
    "jsonl": rf"\.(jsonl|ndjson|json)({_COMPRESSED})?$",
    "parquet": r"\.(parquet|pq)$",
    "arrow": r"\.arrow$",
    # TensorFlow's shards are named data.tfrecord-00000-of-00010.
    "tfrecord": r"\.tfrecords?((\.gz)?(-\d+-of-\d+)?|-\d+-of-\d+\.gz)$",
}


def table_format(name: str) -> TableFormat | None:
    """Return the format that the name of a file shows, or None."""
    found = (kind for kind, pattern in _NAMES.items() if re.search(pattern, name.lower()))
    return next(found, None)
