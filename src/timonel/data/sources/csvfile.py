"""Reading a CSV file into columns or rows of text, with errors that name the line.

Commas separate the values, tabs those of a ``.tsv``. If that makes the header one column, and
semicolons, tabs or bars make it several, these separate them.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from timonel.data.sources.base import UnusableError
from timonel.errors import DataError

_MAX_CELL_CHARACTERS = 1 << 20
_MAX_HEADER_BYTES = 1 << 16
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class CsvFile:
    """The content of a CSV file: all columns as text, empty lines left out.

    Args:
        path: Where it is.
        table: The rows.
        skipped: Rows with too many or too few values: key and reason.
        width: Columns of the file; one more than the table's if its first was left out.
        notes: One line each on how the file was read, if that is not obvious.
        warnings: One line each on what may have been read wrongly.
    """

    path: Path
    table: Any
    skipped: list[tuple[str, str]]
    width: int
    notes: list[str]
    warnings: list[str]

    def line_of(self, row: int) -> int:
        """Return the line in which a row of the table ends, counted from 1."""
        rows = (line for line, values in _rows(self.path) if len(values) == self.width)
        next(rows)
        return next(line for index, line in enumerate(rows) if index == row)


def read_csv(path: Path, *, skip_bad: bool) -> CsvFile:
    """Read a CSV file.

    A first column without a name that numbers the rows, as pandas writes its index, is left out.

    Args:
        path: A file in UTF-8 with a header.
        skip_bad: Leave out rows with too many or too few values instead of raising.

    Raises:
        DataError: It is empty, not UTF-8, or its header repeats or lacks a name.
        UnusableError: A row has too many or too few values.
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
            # In one thread: with several, an invalid row's number is not known.
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
        raise DataError(f"expected a CSV file at {path}, got: {error}") from error
    warnings = []
    if _lines(path) != table.num_rows + ragged + 1:
        # A value, or a quote that is not closed, goes over several lines.
        warnings = _check_quotes(path, len(names))
    skipped = _ragged(path, len(names), skip_bad=skip_bad) if ragged else []
    separator = describe_separator(path)
    notes = [separator] if separator else []
    if not names[0].strip():
        if not _is_index(table.column(0)):
            raise _unnamed(path, 1)
        table = table.remove_column(0)
        notes.append("row id: the first column has no name and numbers the rows; dropped")
    return CsvFile(path, table, skipped, len(names), notes, warnings)


def _is_index(texts: Any) -> bool:
    """Tell whether a column holds whole numbers that rise by one."""
    if not pc.all(pc.match_substring_regex(texts, r"^\d{1,15}$")).as_py():
        return False
    return bool(np.all(np.diff(pc.cast(texts, pa.int64()).to_numpy()) == 1))


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line in which each row ends, counted from 1, and the row's values by column.

    Raises:
        DataError: The file is empty, not UTF-8, or its header repeats or lacks a name.
        UnusableError: A row has too many or too few values.
    """
    names = _header(path)
    previous, is_checked = 0, False
    for line, values in _rows(path):
        if line > previous + 1 and not is_checked:
            _check_quotes(path, len(names))  # as in `read_csv`
            is_checked = True
        if previous and len(values) != len(names):
            raise _wrong_width(path, line, len(names), values, hint="mend or remove it")
        if previous:
            yield line, dict(zip(names, values, strict=True))
        previous = line


def describe_separator(path: Path) -> str | None:
    """Return a line that names the separator, None if it is the one of the file's ending."""
    found = _delimiter(path)
    return None if found == _usual(path) else f"values are separated by {_SEPARATORS[found]}"


def peek(path: Path, rows: int) -> tuple[list[str], list[list[str]]]:
    """Return the first row of a CSV file, which should be its header, and some that follow."""
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
        raise DataError(f"expected a CSV file with a header at {path}, found an empty file")
    # The first may be an index, see `read_csv`; `read_rows` passes it on, and no model asks for it.
    unnamed = [index for index, name in enumerate(names, start=1) if not name.strip() and index > 1]
    if unnamed or names == [""]:
        raise _unnamed(path, *unnamed or [1])
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"expected columns of different names in {path}, found {repeated[0]!r} "
            f"{names.count(repeated[0])} times",
            hint="rename or remove all but one",
        )
    return names


def _unnamed(path: Path, column: int) -> DataError:
    return DataError(
        f"expected a name for each column of {path}, column {column} has none",
        hint="name it in the first line",
    )


def _ragged(path: Path, width: int, *, skip_bad: bool) -> list[tuple[str, str]]:
    skipped = []
    for line, values in _rows(path):
        if len(values) == width:
            continue
        error = _wrong_width(path, line, width, values)
        if not skip_bad:
            raise error
        skipped.append((error.key, error.reason))
    return skipped


def _wrong_width(
    path: Path, line: int, width: int, values: list[str], hint: str | None = None
) -> UnusableError:
    reason = f"expected {width} values, got {len(values)}"
    return UnusableError(f"{path.name} line {line}", reason, hint=hint)


def _check_quotes(path: Path, width: int) -> list[str]:
    """Refuse a quote that is never closed, or closed by the opening quote of another row.

    Arrow takes the rows in between as one value without a word. If that is legal CSV, as the quote
    is closed at the end of a value, return a warning.

    Args:
        path: The file.
        width: Number of its columns.
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
    """Yield the line in which each row ends, and its values; empty lines are left out."""
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
            hint='close its quotes, and write "" for a quote inside of quotes',
        ) from error
    except OSError as error:
        raise DataError(f"expected to read {path}, got {error.strerror or error}") from error
    finally:
        csv.field_size_limit(limit)


def _check_encoding(path: Path) -> None:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"expected UTF-8 in {path}, got the byte {error.object[error.start]:#04x} "
                    f"in line {number}",
                    hint="save the file as UTF-8, with 'iconv -t UTF-8' say",
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
    """Return the beginning of the first line that is not empty."""
    with path.open("rb") as file:
        while line := file.readline(_MAX_HEADER_BYTES):
            if text := line.decode("utf-8-sig", "replace").strip("\r\n"):
                return text
    return ""
