"""Tables that were read from files or memory, with positions of rows for messages."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from timonel.data.manifest import Rejected
from timonel.errors import DataError
from timonel.storage.digests import digest_lines
from timonel.storage.location import Location
from timonel.units import counted

Places = Callable[[Collection[int]], dict[int, str]]
"""Function that returns the positions of rows for messages, such as ``line 7``."""


@dataclass(frozen=True)
class TableFile:
    """Content of one or more files with rows.

    Args:
        table: The rows, as an Arrow table. Columns of CSV files are texts.
        name: Name of the file, for keys and messages.
        modified: Number that changes when the file does.
        is_typed: The columns have types that the file gives.
        rejected: Rows that cannot be read.
        notes: Notes on how the file was read, one line each.
        warnings: Possible misreadings, one line each.
        parts: The files, if there are several.
        keys: Keys of the rows that the file gives.
    """

    table: Any
    name: str
    digest: str
    bytes: int
    modified: int
    places: Places = field(default_factory=lambda: named_places("row"))
    is_typed: bool = True
    rejected: list[Rejected] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    parts: Sequence[TableFile] = ()
    keys: Any = None

    @classmethod
    def of(cls, location: Location, table: Any, **facts: Any) -> Self:
        """Return the content of one file."""
        size, modified = location.local.stat().st_size, location.modified()
        return cls(table, location.name, location.digest(), size, modified, **facts)

    @property
    def files(self) -> int:
        """Number of files."""
        return max(1, len(self.parts))

    def place(self, row: int) -> str:
        """Return the position of a row, such as ``line 7``."""
        return self.places([row])[row]

    def key(self, row: int) -> str:
        """Return the key of a row: the one that the file gives, or file and number, from 1."""
        if self.keys is not None:
            return str(self.keys[row])
        if not self.parts:
            return f"{self.name}#{row + 1}"
        part, inner = _locate(self._starts, row)
        return self.parts[part].key(inner)

    @property
    def _starts(self) -> list[int]:
        return _starts(self.parts)


def named_places(unit: str) -> Places:
    """Return positions that count from 1: ``row 1``, ``row 2``, ..."""
    return lambda rows: {row: f"{unit} {row + 1:,}" for row in rows}


def joined(
    name: str, files: Sequence[tuple[str, TableFile]], optional: Collection[str] | None = ()
) -> TableFile:
    """Return several files with unique names as one table, named after their folder or pattern.

    Optional columns, all if None, have no values in files that lack them.
    """
    parts = [replace(file, name=part) for part, file in files]
    first = parts[0]
    warnings = [warning for part in parts for warning in part.warnings]
    if optional is not None:
        warnings += _check_columns(parts, optional)
    tables = [_ordered(part.table, first.table.column_names) for part in parts]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise _conflict(parts, error) from error
    starts = _starts(parts)

    def places(rows: Collection[int]) -> dict[int, str]:
        asked: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            part, inner = _locate(starts, row)
            asked[part].append(inner)
        return {
            starts[part] + inner: f"{place} of {parts[part].name}"
            for part, inners in asked.items()
            for inner, place in parts[part].places(inners).items()
        }

    return TableFile(
        table=table,
        name=name,
        digest=digest_lines(f"{part.digest} {part.name}" for part in parts),
        bytes=sum(part.bytes for part in parts),
        modified=hash(tuple(part.modified for part in parts)),
        places=places,
        is_typed=first.is_typed,
        rejected=[each for part in parts for each in part.rejected],
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
        warnings=warnings,
        parts=parts,
    )


class MemoryTable(Location):
    """Table in memory, such as a DataFrame, with a title for messages."""

    def __init__(self, table: Any, title: str = "the DataFrame") -> None:
        self.table = table
        self.title = title
        self.uri = f"memory://{title.rsplit(maxsplit=1)[-1]}"

    def __str__(self) -> str:
        return self.title

    def exists(self) -> bool:
        """Return true."""
        return True

    def is_file(self) -> bool:
        """Return true."""
        return True

    def read_table(self) -> TableFile:
        """Return the table with a digest of its content."""
        sink = _Hash()
        with pa.ipc.new_stream(sink.file, self.table.schema) as writer:
            writer.write_table(self.table)
        digest = sink.sha.hexdigest()
        return TableFile(
            table=self.table,
            name=self.name,
            digest=f"sha256:{digest}",
            bytes=self.table.nbytes,
            modified=int(digest[:12], 16),
        )


class _Hash:
    """File that only hashes what is written."""

    closed = False

    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self.file = pa.PythonFile(self, mode="w")

    def write(self, content: Any) -> int:
        self.sha.update(content)
        return len(content)

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _starts(parts: Sequence[TableFile]) -> list[int]:
    counts = (part.table.num_rows for part in parts)
    return list(itertools.accumulate(counts, initial=0))[:-1]


def _locate(starts: Sequence[int], row: int) -> tuple[int, int]:
    part = bisect.bisect_right(starts, row) - 1
    return part, row - starts[part]


def _ordered(table: Any, names: Sequence[str]) -> Any:
    """Return a table with columns in an order, if it has the same."""
    return table.select(names) if {*names} == {*table.column_names} else table


def _check_columns(parts: Sequence[TableFile], optional: Collection[str]) -> list[str]:
    """Check that files have the same columns; return warnings of optional ones that lack."""
    names = dict.fromkeys(name for part in parts for name in part.table.column_names)
    warnings = []
    for name in names:
        lacking = [part for part in parts if name not in part.table.column_names]
        if lacking and name not in optional:
            having = next(part for part in parts if name in part.table.column_names)
            raise DataError(
                f"{having.name} has a column {name!r}, but {lacking[0].name} has none",
                hint=f"convert files with the same columns, or leave it out with --columns "
                f"{name}=drop; with another type, its values are missing in such files",
            )
        if lacking:
            what = counted(len(lacking), "file")
            warnings.append(f"{what} without the column {name!r}, the first: {lacking[0].name}")
    return warnings


def _conflict(parts: Sequence[TableFile], error: Exception) -> DataError:
    first = parts[0].table.schema
    for part in parts[1:]:
        for name in set(first.names) & set(part.table.schema.names):
            types = first.field(name).type, part.table.schema.field(name).type
            if types[0] != types[1]:
                return DataError(
                    f"column {name!r} has the type {types[0]} in {parts[0].name}, "
                    f"but {types[1]} in {part.name}",
                    hint="convert files with the same types",
                )
    return DataError(f"the files do not have the same columns: {error}")
