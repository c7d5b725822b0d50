"""Read Parquet files."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from timonel.data.sources.tablefile import TableFile
from timonel.errors import DataError
from timonel.storage.location import Location


@contextlib.contextmanager
def open_parquet(location: Location) -> Iterator[Any]:
    """Open a Parquet file, as ``pyarrow.parquet.ParquetFile``."""
    try:
        # The dataset reader would add columns for folders such as `year=2024`.
        with pq.ParquetFile(location.local) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{location} is not a valid Parquet file: {reason}") from error


def read_parquet(location: Location, rows: int | None = None) -> TableFile:
    """Read a Parquet file, or its first rows."""
    with open_parquet(location) as file:
        if rows is None:
            table = file.read()
        else:
            batches = itertools.islice(file.iter_batches(rows), 1)
            table = pa.Table.from_batches(batches, file.schema_arrow)
    return TableFile.of(location, table)
