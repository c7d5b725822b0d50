"""Read Parquet and Arrow files, also datasets that Hugging Face's ``datasets`` saved to disk."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from timonel.data.sources.arrow import with_column, with_names
from timonel.data.sources.tablefile import TableFile
from timonel.errors import DataError
from timonel.storage.location import Location

_STATE, _SPLITS, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"


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


def saved_files(location: Location) -> list[Location]:
    """Return the Arrow files of a dataset from ``save_to_disk``; empty for other locations."""
    if not location.is_dir():
        return []
    names = location.children[1]
    folders = [location] if _STATE in names else []
    if _SPLITS in names:
        folders = [location / name for name in _document(location / _SPLITS).get("splits", [])]
    files = []
    for folder in folders:
        state = _document(folder / _STATE)
        if state.get("_indices_data_files"):
            raise DataError(
                f"{folder} selects rows by an index", hint="call flatten_indices() before saving"
            )
        files += [folder / str(file["filename"]) for file in state.get("_data_files", [])]
    return files


def read_arrow(location: Location) -> TableFile:
    """Read an Arrow stream or file; numbers of classes become their names."""
    path = location.local
    try:
        with pa.OSFile(str(path)) as file:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            table = (pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)).read_all()
            # Damaged offsets would crash the process later.
            table.validate(full=True)
    except (pa.ArrowException, OSError, SystemError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{location} is not a valid Arrow file: {reason}") from error
    info = location.parent / _INFO
    features = _document(info).get("features") if info.is_file() else None
    for name, feature in (features or {}).items():
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            names = [str(each) for each in feature.get("names", [])]
            table = with_column(table, name, with_names(table[name], names))
    return TableFile.of(location, table)


def _document(location: Location) -> dict[str, Any]:
    try:
        found = json.loads(location.read())
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {location}: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"expected a JSON object in {location}")
    return found
