"""DataFrames of pandas, and of other libraries with Arrow's interface, as tables."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Protocol

import pyarrow as pa

from timonel.data.sources.tablefile import MemoryTable
from timonel.errors import DataError, InputError
from timonel.storage.location import Location


class Frame(Protocol):
    """Table in memory: a DataFrame of pandas or Polars, or an Arrow table."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows to Arrow."""


def locate(source: str | os.PathLike[str] | Frame) -> Location:
    """Return the location of a source: a path, a URI, or a table in memory.

    The index of a pandas DataFrame is not part of the table.
    """
    if isinstance(source, str | os.PathLike):
        return Location(source)
    if hasattr(source, "dtypes") and hasattr(source, "to_parquet"):
        return MemoryTable(_from_pandas(source))
    if hasattr(source, "__arrow_c_stream__"):
        return MemoryTable(pa.table(source), "the table")
    raise InputError(
        f"the source must be a path, a URI or a DataFrame, got {type(source).__name__}"
    )


def _from_pandas(frame: Any) -> Any:
    names = [str(name) for name in frame.columns]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"the DataFrame has {names.count(repeated[0])} columns named {repeated[0]!r}",
            hint="rename or remove all but one",
        )
    columns = [column_of(name, frame.iloc[:, index]) for index, name in enumerate(names)]
    return pa.table(dict(zip(names, columns, strict=True)))


def column_of(name: str, series: Any) -> Any:
    """Return a column of a pandas DataFrame as an Arrow array."""
    try:
        return pa.Array.from_pandas(series)
    except (pa.ArrowException, OverflowError) as error:
        first = None
        for row, value in enumerate(series, start=1):
            if value is None or value != value:  # noqa: PLR0124 - NaN
                continue
            kind = type(value).__name__
            first = first or kind
            if kind != first:
                raise DataError(
                    f"column {name!r} of the DataFrame has {first} and {kind}: "
                    f"{str(value)[:40]!r} in row {row:,}",
                    hint="give the column one type, for example with astype(str)",
                ) from error
        reason = " ".join(str(error).split())
        raise DataError(f"cannot read column {name!r} of the DataFrame: {reason}") from error
