"""Read a CSV file as text, with line numbers in errors.

Values are separated by commas, or by tabs in a ``.tsv`` file. If that gives a header of one column
but semicolons, tabs or bars give several, that separator is used.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from timonel.data.schema import IMAGE_ENDINGS, split_named
from timonel.data.sources.base import UnusableError
from timonel.data.sources.columns import Kinds, parse_number
from timonel.data.sources.inference import is_row_id
from timonel.data.sources.tablefile import TableFile
from timonel.data.sources.textfile import TextFile
from timonel.errors import DataError, SpecError
from timonel.storage.location import Location

_MAX_CELL_CHARACTERS = 1 << 20
_MAX_HEADER_BYTES = 1 << 16
_SAMPLE = 20
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_NO_SPLITS = frozenset({"unassigned", "discard", ""})


class CsvFile:
    """CSV file with its encoding and separator, detected by default, and its column names.

    A list of images, as in AutoML and TFRecorder, is recognised without a header.
    """

    def __init__(
        self,
        location: Location,
        *,
        encoding: str | None = None,
        delimiter: str | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.location = location
        self.text = TextFile(location, encoding)
        self._given = None if delimiter is None else parse_delimiter(delimiter)
        self._given_names = list(names)

    def peek(self, rows: int = _SAMPLE) -> tuple[list[str], list[list[str]]]:
        """Return the names of the columns and up to ``rows`` first rows."""
        values = (values for _, values in self._rows())
        found = list(itertools.islice(values, rows + self._has_header))
        return self._names, found[self._has_header :]

    def read(self) -> TableFile:
        """Read all rows.

        An unnamed first column that numbers the rows, such as a pandas index, is dropped.
        """
        names = self._checked_names()
        table, ragged = self._parse(names)
        warnings = []
        if self._count_lines() != table.num_rows + ragged + self._has_header:
            # A quoted value, or an unclosed quote, spans several lines.
            warnings = self._check_quotes()
        rejected = [error.rejected for error in self.ragged().values()] if ragged else []
        notes = [note for note in (self.describe_separator(), self._note_on_names()) if note]
        if not names[0].strip():
            if not is_row_id(Kinds.of(table.column(0)), ""):
                raise self._unnamed(1)
            table = table.remove_column(0)
            notes.append("row id: the first column has no name and numbers the rows; dropped")
        return TableFile.of(
            self.location,
            table,
            places=self._places,
            is_typed=False,
            rejected=rejected,
            notes=[*self.text.notes, *notes],
            warnings=[*self.text.warnings, *warnings],
        )

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield rows as dicts, with the line numbers in which they end.

        Lines are counted from 1.
        """
        names = self._checked_names()
        previous, is_checked = 0, False
        for line, values in self._rows():
            if line > previous + 1 and not is_checked:
                self._check_quotes()  # as in `read`
                is_checked = True
            if previous or not self._has_header:
                if len(values) != len(names):
                    raise self._wrong_width(line, values, hint="repair or remove it")
                yield line, dict(zip(names, values, strict=True))
            previous = line

    def ragged(self) -> dict[int, UnusableError]:
        """Return the rows with too many or too few values, by their numbers from 0."""
        rows = itertools.islice(self._rows(), self._has_header, None)
        return {
            number: self._wrong_width(line, values)
            for number, (line, values) in enumerate(rows)
            if len(values) != len(self._names)
        }

    def describe_separator(self) -> str | None:
        """Return a note on the separator, or None for the usual one."""
        found = self.delimiter
        if found in {self._usual, self._given}:
            return None
        return f"values are separated by {_SEPARATORS[found]}"

    @functools.cached_property
    def delimiter(self) -> str:
        """The separator of values."""
        if self._given is not None:
            return self._given
        line = self._first_line()  # up to \n, and with \r it may have several rows
        widths = {
            separator: len(next(csv.reader(io.StringIO(line, newline=""), delimiter=separator), []))
            for separator in (self._usual, *_SEPARATORS)
        }
        if widths[self._usual] > 1:
            return self._usual
        return max(widths, key=lambda each: widths[each])

    @property
    def _usual(self) -> str:
        return "\t" if self.location.ending == ".tsv" else ","

    @property
    def _names(self) -> list[str]:
        return self._header[0]

    @property
    def _has_header(self) -> bool:
        return self._header[1]

    @functools.cached_property
    def _header(self) -> tuple[list[str], bool]:
        """Names of the columns, and whether the first line has them."""
        sample = [values for _, values in itertools.islice(self._rows(), _SAMPLE)]
        first = sample[0] if sample else []
        if self._given_names:
            return self._given_names, _is_same(first, self._given_names)
        if "".join(first)[:4].lower() == "sep=" and len(self._first_line()) == 5:
            raise DataError(
                f"the first line of {self.location} is {self._first_line()!r}, as Excel writes it",
                hint="remove this line; --delimiter names a separator",
            )
        if any(_is_image(value) for value in first):
            return self._list_names(sample), False
        if first and all(parse_number(value) == parse_number(value) for value in first):
            raise DataError(
                f"the first line of {self.location} is not a header: {','.join(first)[:60]}",
                hint="name the columns with --column-names",
            )
        return first, True

    def _list_names(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """Return the names of the columns of a list of images without a header."""
        columns = list(zip(*rows, strict=False))
        image = next(i for i, values in enumerate(columns) if _is_image(values[0]))
        splits = [i for i, values in enumerate(columns) if all(map(_is_split, values))]
        labels = [i for i in range(len(columns)) if i != image and i not in splits[:1]]
        if len(labels) != 1:
            raise DataError(
                f"{self.location} has no header: {','.join(rows[0])[:60]}",
                hint="name the columns with --column-names, such as split,image_uri,label",
            )
        known = {image: "image_uri", labels[0]: "label", **dict.fromkeys(splits[:1], "split")}
        return [known[i] for i in range(len(columns))]

    def _note_on_names(self) -> str:
        if self._has_header or self._given_names:
            return ""
        return f"no header: the columns are {', '.join(self._names)}"

    def _checked_names(self) -> list[str]:
        names = self._names
        if not names:
            raise DataError(f"{self.location} is empty")
        # The first may be an index, see `read`; `rows` passes it on, and models ignore it.
        unnamed = [i for i, name in enumerate(names, start=1) if not name.strip() and i > 1]
        if unnamed or names == [""]:
            raise self._unnamed(*unnamed or [1])
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise DataError(
                f"{self.location} has {names.count(repeated[0])} columns named {repeated[0]!r}",
                hint="rename or remove all but one",
            )
        return names

    def _parse(self, names: Sequence[str]) -> tuple[Any, int]:
        """Return the rows as an Arrow table of texts, and the number of others."""
        ragged = 0

        def handle(_row: Any) -> str:
            nonlocal ragged
            ragged += 1
            return "skip"

        has_other_names = self._has_header and self._given_names
        try:
            with self.text.open() as file:
                table = pacsv.read_csv(
                    file,
                    # With several threads, Arrow does not know the number of an invalid row.
                    read_options=pacsv.ReadOptions(
                        use_threads=False,
                        column_names=self._given_names or (None if self._has_header else names),
                        skip_rows_after_names=1 if has_other_names else 0,
                    ),
                    parse_options=pacsv.ParseOptions(
                        delimiter=self.delimiter,
                        newlines_in_values=True,
                        invalid_row_handler=handle,
                    ),
                    convert_options=pacsv.ConvertOptions(
                        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                    ),
                )
        except pa.ArrowInvalid as error:
            self._check_quotes()
            raise DataError(f"{self.location} is not a valid CSV file: {error}") from error
        return table, ragged

    def _places(self, rows: Collection[int]) -> dict[int, str]:
        """Return the lines in which rows end."""
        if not rows:
            return {}
        width = len(self._names)
        lines = (line for line, values in self._rows() if len(values) == width)
        if self._has_header:
            next(lines)
        asked, last = set(rows), max(rows)
        numbered = enumerate(itertools.islice(lines, last + 1))
        return {row: f"line {line}" for row, line in numbered if row in asked}

    def _count_lines(self) -> int:
        with self.text.open() as file:
            count, last = 0, b"\n"
            while block := file.read(1 << 20):
                count += block.count(b"\n")
                last = block[-1:]
        return count + (last != b"\n")

    def _unnamed(self, *columns: int) -> DataError:
        one = len(columns) == 1
        what = f"column{'' if one else 's'} {', '.join(map(str, columns))} of {self.location}"
        return DataError(
            f"{what} {'has' if one else 'have'} no name",
            hint=f"name {'it' if one else 'them'} in the first line",
        )

    def _wrong_width(self, line: int, values: list[str], hint: str | None = None) -> UnusableError:
        reason = f"expected {len(self._names)} values, got {len(values)}"
        return UnusableError(f"{self.location.name} line {line}", reason, hint=hint)

    def _check_quotes(self) -> list[str]:
        """Reject a quote that is unclosed, or closed in another row.

        Arrow silently reads the rows in between as one value. If that is legal CSV, because the
        quote is closed at the end of a value, return a warning.
        """
        width, found = len(self._names), []
        for end, values in self._rows(strict=True):
            breaks = sum(value.count("\n") for value in values)
            lines = [line for value in values for line in value.split("\n")[1:]]
            inside = sum(line.count(self.delimiter) == width - 1 for line in lines)
            if inside and width > 1:
                found.append((end - breaks, inside))
        if not found:
            return []
        line, inside = found[0]
        what = (
            "1 line that looks like a row" if inside == 1 else f"{inside} lines that look like rows"
        )
        more = f", as do {len(found) - 1} more" if len(found) > 1 else ""
        place = f"the row from line {line} of {self.location.name}"
        return [f"a quoted value in {place} holds {what}{more}: close its quote if these are rows"]

    def _rows(self, *, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
        """Yield each non-empty row with the line number in which it ends."""
        limit = csv.field_size_limit(_MAX_CELL_CHARACTERS)
        start = 1
        try:
            with io.TextIOWrapper(self.text.open(), encoding="utf-8", newline="") as file:
                reader = csv.reader(file, delimiter=self.delimiter, strict=strict)
                for values in reader:
                    start = reader.line_num + 1
                    if values:
                        yield reader.line_num, values
        except csv.Error as error:
            reason = str(error)
            if "field limit" in reason:
                reason = f"a value has more than {_MAX_CELL_CHARACTERS:,} characters"
            elif strict:
                reason = "a quote is not closed"
            raise DataError(
                f"cannot read the row that starts in line {start} of {self.location}: {reason}",
                hint='close its quotes, and write "" for a quote inside quotes',
            ) from error
        except OSError as error:
            message = f"cannot read {self.location}: {error.strerror or error}"
            raise DataError(message) from error
        finally:
            csv.field_size_limit(limit)

    def _first_line(self) -> str:
        """Return the start of the first non-empty line."""
        with self.text.open() as file:
            while line := file.readline(_MAX_HEADER_BYTES):
                if text := line.decode("utf-8", "replace").strip("\r\n"):
                    return text
        return ""


def parse_delimiter(word: str) -> str:
    r"""Return the separator of values for ``word``; ``tab`` and ``\t`` mean a tab."""
    found = "\t" if word.lower() in {"tab", "\\t"} else word
    if len(found) != 1 or found in '\r\n"':
        raise SpecError(
            f"expected one character as the delimiter, got {word!r}", hint="such as ';' or tab"
        )
    return found


def _is_image(value: str) -> bool:
    return value.strip().lower().endswith(IMAGE_ENDINGS)


def _is_split(value: str) -> bool:
    return split_named(value) is not None or value.strip().lower() in _NO_SPLITS


def _is_same(first: Sequence[str], names: Sequence[str]) -> bool:
    return [word.strip().lower() for word in first] == [name.lower() for name in names]
