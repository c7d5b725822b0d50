"""Read Parquet files."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pyarrow.parquet as pq

from timonel.data.sources.tablefile import TableFile, named_places
from timonel.errors import DataError
from timonel.storage.location import Location


def read_parquet(location: Location, rows: int | None = None) -> TableFile:
    """Read a Parquet file, or its first rows.

    Raises:
        DataError: It is damaged, or not a Parquet file.
    """
    path = location.local
    try:
        # The dataset reader would add columns for folders such as `year=2024`.
        with pq.ParquetFile(path) as file:
            if rows is None:
                table = file.read()
            else:
                batches = itertools.islice(file.iter_batches(rows), 1)
                table = pa.Table.from_batches(batches, file.schema_arrow)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{location} is not a valid Parquet file: {reason}") from error
    return TableFile(
        table=table,
        name=location.name,
        digest=location.digest(),
        bytes=path.stat().st_size,
        modified=location.modified(),
        places=named_places("row"),
    )
