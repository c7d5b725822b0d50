"""Choose the reader of a table by the ending of its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE
from timonel.data.sources.arrow import as_texts, is_text, with_column, with_names
from timonel.data.sources.arrowfile import read_arrow, read_parquet, saved_files
from timonel.data.sources.base import SourceOptions
from timonel.data.sources.csvfile import CsvFile
from timonel.data.sources.formats import file_format
from timonel.data.sources.jsonlines import first_texts, read_json_lines
from timonel.data.sources.recordfiles import (
    dataset_manifest,
    label_names,
    missing_files,
    record_files,
    splits_of,
)
from timonel.data.sources.recordtable import columns_of_dataset, read_record_table, with_types
from timonel.data.sources.tablefile import MemoryTable, TableFile, joined
from timonel.data.sources.textfile import TextFile
from timonel.errors import DataError
from timonel.storage.location import Location, distinct_names

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_INDEX = re.compile(r"__index_level_\d+__$")
"""Names that pandas gives to columns of an index without a name."""
_SAMPLE = 20


def is_table(location: Location) -> bool:
    """Tell whether a location is a table, or a folder or pattern of tables with one ending."""
    if isinstance(location, MemoryTable):
        return True
    if record_files(location) or saved_files(location):
        return True
    first = location.first_file()
    if first is None or file_format(first) is None:
        return False
    return {file.ending for file in location.files()} == {first.ending}


def read_table(location: Location, options: SourceOptions) -> TableFile:
    """Read the table at a file, folder or pattern."""
    return _without_index(_read_all(location, options), options)


def _without_index(file: TableFile, options: SourceOptions) -> TableFile:
    """Return a table without the index of a DataFrame, unless the user names it."""
    given = {*options.columns, options.label, options.group_by}
    stored = (file.table.schema.pandas_metadata or {}).get("index_columns", ())
    index = [name for name in file.table.column_names if name in stored or _INDEX.match(name)]
    names = [name for name in index if name not in given]
    if not names:
        return file
    note = f"{', '.join(names)}: the index of a DataFrame, left out"
    return replace(file, table=file.table.drop_columns(names), notes=[*file.notes, note])


def _read_all(location: Location, options: SourceOptions) -> TableFile:
    if isinstance(location, MemoryTable):
        return location.read_table()
    files = record_files(location) or saved_files(location) or location.files()
    if not files:
        raise DataError(f"no files are in {location}")
    found = _read(location, options) if location.is_file() else _joined(location, files, options)
    if file_format(files[0]) == "tfrecord":
        return _of_records(found, location, options)
    return found


def _joined(location: Location, files: Sequence[Location], options: SourceOptions) -> TableFile:
    tables = []
    for file, name, split in zip(files, distinct_names(files), splits_of(files), strict=True):
        constants = _partition(location, file)
        if split is not None:
            constants["split"] = split
        tables.append((name, _with_constants(_read(file, options), constants)))
    is_dataset = location.is_dir() and dataset_manifest(location) is not None
    found = joined(location.name, tables, optional=None if is_dataset else options.columns)
    return replace(found, warnings=[*found.warnings, *missing_files(files)])


def peek(location: Location, options: SourceOptions) -> dict[str, list[str]]:
    """Return the first texts of each column, of the first file."""
    if isinstance(location, MemoryTable):
        return _texts(location.table.slice(0, _SAMPLE))
    if record_files(location):
        return {}  # lists of images are not stored as TFRecords
    file = next(iter(saved_files(location)), None) or location.first_file()
    return {} if file is None else _peek(file, options)


def _peek(file: Location, options: SourceOptions) -> dict[str, list[str]]:
    match file_format(file):
        case "csv":
            names, rows = _csv(file, options).peek(_SAMPLE)
            return {name: [row[i] for row in rows if len(row) > i] for i, name in enumerate(names)}
        case "jsonl":
            return first_texts(TextFile(file, options.encoding), _SAMPLE)
        case "parquet":
            return _texts(read_parquet(file, rows=_SAMPLE).table)
    return _texts(_read(file, options).table.slice(0, _SAMPLE))


def _read(location: Location, options: SourceOptions) -> TableFile:
    match file_format(location):
        case "csv":
            return _csv(location, options).read()
        case "jsonl":
            return read_json_lines(TextFile(location, options.encoding), options.columns)
        case "tfrecord":
            return read_record_table(location)
        case "arrow":
            return read_arrow(location)
    return read_parquet(location)


def _of_records(file: TableFile, location: Location, options: SourceOptions) -> TableFile:
    """Return a table of TFRecords with types, and with the names of classes beside them."""
    manifest = dataset_manifest(location) if location.is_dir() else None
    if manifest is not None:
        table = columns_of_dataset(file.table, manifest)
        keys = as_texts(with_types(file.table.select([KEY_FEATURE]))[KEY_FEATURE])
        return replace(file, table=table, keys=keys)
    table, label = with_types(file.table), options.label or LABEL_FEATURE
    if label not in table.column_names:
        return replace(file, table=table)
    kind = table[label].type
    is_number = pa.types.is_integer(kind.value_type if pa.types.is_list(kind) else kind)
    if is_number and (names := label_names(location, label)):
        table = with_column(table, label, with_names(table[label], names))
    return replace(file, table=table)


def _partition(location: Location, file: Location) -> dict[str, str]:
    """Return the values in names of folders such as ``year=2024``, as Spark writes them."""
    start = 0 if location.is_pattern else len(location.uri)
    folders = file.uri[start:].split("/")[:-1]
    pairs = (unquote(folder).partition("=") for folder in folders if "=" in folder)
    return {name: "" if value == _NO_VALUE else value for name, _, value in pairs}


def _with_constants(file: TableFile, constants: Mapping[str, str]) -> TableFile:
    """Return a table with a column for each value that the file's path assigns."""
    table, notes = file.table, list(file.notes)
    known = {name.lower() for name in table.column_names}
    for name, value in constants.items():
        if name.lower() not in known:
            table = table.append_column(name, pa.repeat(value, table.num_rows))
            notes.append(f"the paths of the files assign the column {name}")
    return replace(file, table=table, notes=notes)


def _csv(location: Location, options: SourceOptions) -> CsvFile:
    return CsvFile(
        location,
        encoding=options.encoding,
        delimiter=options.delimiter,
        names=options.column_names,
    )


def _texts(table: Any) -> dict[str, list[str]]:
    return {
        field.name: as_texts(table[field.name]).to_pylist() if is_text(field.type) else []
        for field in table.schema
    }
