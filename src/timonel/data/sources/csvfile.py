"""Read a CSV file as text, with line numbers in errors.

Values are separated by commas, or by tabs in a ``.tsv`` file. If that gives a header of one column
but semicolons, tabs or bars give several, that separator is used.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from timonel.data.manifest import Skipped
from timonel.data.sources.base import UnusableError
from timonel.data.sources.columns import Kinds, is_row_id
from timonel.errors import DataError

_MAX_CELL_CHARACTERS = 1 << 20
_MAX_HEADER_BYTES = 1 << 16
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class CsvFile:
    """Content of a CSV file: all columns as text, without empty lines.

    Args:
        path: Path of the file.
        table: The rows.
        rejected: Rows with too many or too few values.
        width: Number of columns in the file; the table has one less if its index was dropped.
        notes: Notes on how the file was read, one line each.
        warnings: Possible misreadings, one line each.
    """

    path: Path
    table: Any
    rejected: list[Skipped]
    width: int
    notes: list[str]
    warnings: list[str]

    def line_of(self, row: int) -> int:
        """Return the line number, from 1, in which a row ends."""
        return self.lines_of([row])[row]

    def lines_of(self, rows: Collection[int]) -> dict[int, int]:
        """Return the line numbers, from 1, in which rows end."""
        if not rows:
            return {}
        lines = (line for line, values in _rows(self.path) if len(values) == self.width)
        next(lines)
        asked, last = set(rows), max(rows)
        numbered = enumerate(itertools.islice(lines, last + 1))
        return {row: line for row, line in numbered if row in asked}


def read_csv(path: Path) -> CsvFile:
    """Read a CSV file.

    An unnamed first column that numbers the rows, such as a pandas index, is dropped.

    Args:
        path: A file in UTF-8 with a header.

    Raises:
        DataError: The file is empty or not UTF-8, or its header repeats or lacks a name.
    """
    names = _header(path)
    ragged = 0

    def handle(_row: Any) -> str:
        nonlocal ragged
        ragged += 1
        return "skip"

    try:
        table = pacsv.read_csv(
            path,
            # With several threads, Arrow does not know the number of an invalid row.
            read_options=pacsv.ReadOptions(use_threads=False),
            parse_options=pacsv.ParseOptions(
                delimiter=_delimiter(path), newlines_in_values=True, invalid_row_handler=handle
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        _check_encoding(path)
        _check_quotes(path, len(names))
        raise DataError(f"{path} is not a valid CSV file: {error}") from error
    warnings = []
    if _lines(path) != table.num_rows + ragged + 1:
        # A quoted value, or an unclosed quote, spans several lines.
        warnings = _check_quotes(path, len(names))
    rejected = _ragged(path, len(names)) if ragged else []
    separator = describe_separator(path)
    notes = [separator] if separator else []
    if not names[0].strip():
        if not is_row_id(Kinds.of(table.column(0)), ""):
            raise _unnamed(path, 1)
        table = table.remove_column(0)
        notes.append("row id: the first column has no name and numbers the rows; dropped")
    return CsvFile(path, table, rejected, len(names), notes, warnings)


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield rows as dicts, with the line numbers in which they end.

    Lines are counted from 1.

    Raises:
        DataError: The file is empty or not UTF-8, or its header repeats or lacks a name.
        UnusableError: A row has too many or too few values.
    """
    names = _header(path)
    previous, is_checked = 0, False
    for line, values in _rows(path):
        if line > previous + 1 and not is_checked:
            _check_quotes(path, len(names))  # as in `read_csv`
            is_checked = True
        if previous and len(values) != len(names):
            raise _wrong_width(path, line, len(names), values, hint="repair or remove it")
        if previous:
            yield line, dict(zip(names, values, strict=True))
        previous = line


def describe_separator(path: Path) -> str | None:
    """Return a note on the separator, or None for the usual one."""
    found = _delimiter(path)
    return None if found == _usual(path) else f"values are separated by {_SEPARATORS[found]}"


def peek(path: Path, rows: int) -> tuple[list[str], list[list[str]]]:
    """Return a CSV file's header and up to ``rows`` following rows."""
    found = [values for _, values in itertools.islice(_rows(path), rows + 1)]
    return (found[0], found[1:]) if found else ([], [])


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(1 << 20), b"")
        count, last = 0, b"\n"
        for block in blocks:
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def _header(path: Path) -> list[str]:
    _, names = next(_rows(path), (0, []))
    if not names:
        raise DataError(f"{path} is empty")
    # The first may be an index, see `read_csv`; `read_rows` passes it on, and models ignore it.
    unnamed = [index for index, name in enumerate(names, start=1) if not name.strip() and index > 1]
    if unnamed or names == [""]:
        raise _unnamed(path, *unnamed or [1])
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"{path} has {names.count(repeated[0])} columns named {repeated[0]!r}",
            hint="rename or remove all but one",
        )
    return names


def _unnamed(path: Path, column: int) -> DataError:
    return DataError(
        f"column {column} of {path} has no name",
        hint="name it in the first line",
    )


def _ragged(path: Path, width: int) -> list[Skipped]:
    return [
        _wrong_width(path, line, width, values).skipped
        for line, values in _rows(path)
        if len(values) != width
    ]


def _wrong_width(
    path: Path, line: int, width: int, values: list[str], hint: str | None = None
) -> UnusableError:
    reason = f"expected {width} values, got {len(values)}"
    return UnusableError(f"{path.name} line {line}", reason, hint=hint)


def _check_quotes(path: Path, width: int) -> list[str]:
    """Reject a quote that is unclosed, or closed in another row.

    Arrow silently reads the rows in between as one value. If that is legal CSV, because the quote
    is closed at the end of a value, return a warning.

    Args:
        path: The file.
        width: Number of columns.
    """
    separator, found = _delimiter(path), []
    for end, values in _rows(path, strict=True):
        breaks = sum(value.count("\n") for value in values)
        lines = [line for value in values for line in value.split("\n")[1:]]
        inside = sum(line.count(separator) == width - 1 for line in lines)
        if inside and width > 1:
            found.append((end - breaks, inside))
    if not found:
        return []
    line, inside = found[0]
    what = "1 line that looks like a row" if inside == 1 else f"{inside} lines that look like rows"
    more = f", as do {len(found) - 1} more" if len(found) > 1 else ""
    place = f"the row from line {line} of {path.name}"
    return [f"a quoted value in {place} holds {what}{more}: close its quote if these are rows"]


def _rows(path: Path, *, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield each non-empty row with the line number in which it ends."""
    limit = csv.field_size_limit(_MAX_CELL_CHARACTERS)
    start = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=_delimiter(path), strict=strict)
            for values in reader:
                start = reader.line_num + 1
                if values:
                    yield reader.line_num, values
    except UnicodeDecodeError:
        _check_encoding(path)
        raise
    except csv.Error as error:
        reason = str(error)
        if "field limit" in reason:
            reason = f"a value has more than {_MAX_CELL_CHARACTERS:,} characters"
        elif strict:
            reason = "a quote is not closed"
        raise DataError(
            f"cannot read the row that starts in line {start} of {path}: {reason}",
            hint='close its quotes, and write "" for a quote inside quotes',
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    finally:
        csv.field_size_limit(limit)


def _check_encoding(path: Path) -> None:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path} is not UTF-8: line {number} has the byte "
                    f"{error.object[error.start]:#04x}",
                    hint="save the file as UTF-8, for example with 'iconv -t UTF-8'",
                ) from error


def _delimiter(path: Path) -> str:
    usual = _usual(path)
    header = _first_line(path)
    widths = {
        separator: len(next(csv.reader([header], delimiter=separator), []))
        for separator in (usual, *_SEPARATORS)
    }
    return usual if widths[usual] > 1 else max(widths, key=lambda each: widths[each])


def _usual(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _first_line(path: Path) -> str:
    """Return the start of the first non-empty line."""
    with path.open("rb") as file:
        while line := file.readline(_MAX_HEADER_BYTES):
            if text := line.decode("utf-8-sig", "replace").strip("\r\n"):
                return text
    return ""
