"""Read Arrow files, also those of datasets that Hugging Face's ``datasets`` saved to disk."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from timonel.data.sources.arrow import with_column, with_names
from timonel.data.sources.tablefile import TableFile
from timonel.errors import DataError
from timonel.storage.location import Location

_STATE, _SPLITS, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"


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
