"""CSV files: a header, one row per record, one column with the label.

The whole file is held as an Arrow table while it is converted. Types are inferred from all values:
a column is numeric if each value that is not missing is a number and none has a leading zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from timonel.data.schema import COLUMN_PREFIX, Column, TableSchema, Task
from timonel.data.sources import columns as arrow
from timonel.data.sources.base import Description, Entry, Raw, Scan, Source, UnusableError
from timonel.data.sources.csvfile import CsvFile, read_csv
from timonel.errors import DataError, SpecError
from timonel.storage.digests import digest_file

_FEW = 20
"""More different whole numbers than this are a quantity to predict rather than classes."""


class CsvSource(Source):
    """The rows of a CSV file (``.tsv``: separated by tabs), in their order."""

    plugin: ClassVar[str] = "csv"
    kind: ClassVar[str] = "table"
    parallel: ClassVar[bool] = False

    @classmethod
    def recognises(cls, location: Path) -> bool:
        """Tell whether ``location`` is a file with a CSV's ending."""
        return location.is_file() and location.suffix.lower() in {".csv", ".tsv"}

    def scan(self) -> Scan:
        """Read the file and find the type of every column."""
        self._file = file = read_csv(self.location, skip_bad=self.options.skip_bad)
        label = self._label_column(file)
        names = [name for name in file.table.column_names if name != label]
        self._check_options(file, names)
        ignored = [f"column {name!r} (no values)" for name in names if self._is_empty(name)]
        names = [name for name in names if not self._is_empty(name)]
        if not names:
            raise DataError(f"expected columns besides the label {label!r} in {self.location}")
        self._columns = {name: self._values(name) for name in names}
        task, labels = self._labels(label)
        kept, skipped = self._with_label(labels, label)
        size = max(1, self.location.stat().st_size // max(1, file.table.num_rows))
        entries = [Entry(self._key(row), labels[row], size, row) for row in kept]
        self._check_labels(entries, label)
        return Scan(entries, task, ignored, [*file.skipped, *skipped])

    def read(self, entry: Entry) -> Raw:
        """Return the values of one row. A missing number is NaN, a missing word is empty."""
        row: int = entry.ref
        return Raw({COLUMN_PREFIX + name: column[row] for name, column in self._columns.items()})

    def describe(self, facts: Mapping[str, Any], train: Sequence[Entry]) -> Description:  # noqa: ARG002 - rows have none
        """Sum up the columns over the training split."""
        rows = np.fromiter((entry.ref for entry in train), np.int64, len(train))
        columns: list[Column] = [
            column.describe(name, rows) for name, column in self._columns.items()
        ]
        size = self.location.stat().st_size
        schema = TableSchema(label=self._label_column(self._file), columns=tuple(columns))
        return Description(schema, digest_file(self.location), 1, size)

    def _label_column(self, file: CsvFile) -> str:
        names = file.table.column_names
        label = self.options.label
        if label is None:
            raise SpecError(
                f"expected the name of the column that holds the label of {self.location}",
                hint=f"give it with --label; the columns are {', '.join(names)}",
            )
        if label not in names:
            raise DataError(
                f"expected a column {label!r} in {self.location}, found {', '.join(names)}",
                hint="give the name of the label's column with --label",
            )
        return label

    def _check_options(self, file: CsvFile, names: Sequence[str]) -> None:
        unknown = [name for name in self.options.columns if name not in names]
        if unknown:
            raise SpecError(
                f"expected types for columns of {self.location}, got one for {unknown[0]!r}",
                hint=f"the columns are {', '.join(names)}",
            )
        if not file.table.num_rows:
            raise DataError(f"expected rows in {self.location}, found only a header")

    def _is_empty(self, name: str) -> bool:
        return arrow.all_missing(self._file.table[name])

    def _values(self, name: str) -> arrow.Values:
        values = self._file.table[name]
        wanted = self.options.columns.get(name)
        if wanted == "categorical":
            return arrow.Words.of(values)
        bad = arrow.first_non_number(values, allow_codes=wanted == "numeric")
        if bad is None:
            return arrow.Numbers.of(values)
        if wanted is None:
            return arrow.Words.of(values)
        raise DataError(
            f"expected numbers in column {name!r} of {self.location}, "
            f"got {values[bad].as_py()!r} in line {self._file.line_of(bad)}",
            hint="mend it, or let the column be categorical",
        )

    def _labels(self, name: str) -> tuple[Task, list[str | float]]:
        """Return the task, and the label of each row; a missing one is an empty text."""
        values = self._file.table[name]
        numeric = arrow.first_non_number(values, allow_codes=True) is None
        if self.options.task == "regression" and not numeric:
            raise DataError(
                f"expected numbers in the label column {name!r} for a regression, got words",
                hint="choose another label, or the task classification",
            )
        if not numeric:
            return "classification", list(arrow.Words.of(values).texts())
        numbers = arrow.Numbers.of(values).values
        known = numbers[~np.isnan(numbers)]
        whole = bool(np.all(known == np.floor(known)))
        few = len(np.unique(known)) <= min(_FEW, max(2, len(known) // 2))
        task = self.options.task or ("classification" if whole and few else "regression")
        if task == "regression":
            return task, ["" if np.isnan(number) else float(number) for number in numbers]
        if whole:
            return task, ["" if np.isnan(number) else str(int(number)) for number in numbers]
        return task, list(arrow.Words.of(values).texts())

    def _with_label(
        self, labels: Sequence[str | float], name: str
    ) -> tuple[list[int], list[tuple[str, str]]]:
        kept, skipped = [], []
        for row, label in enumerate(labels):
            if label != "":
                kept.append(row)
                continue
            reason = f"expected a label in column {name!r}, got none in line"
            error = UnusableError(self._key(row), f"{reason} {self._file.line_of(row)}")
            if not self.options.skip_bad:
                raise error
            skipped.append((error.key, error.reason))
        return kept, skipped

    def _check_labels(self, entries: Sequence[Entry], name: str) -> None:
        found = {entry.label for entry in entries}
        if len(found) < 2:
            what = f"only {found.pop()!r}" if found else "none"
            raise DataError(
                f"expected at least two labels in column {name!r} of {self.location}, found {what}",
                hint="give the name of the label's column with --label",
            )

    def _key(self, row: int) -> str:
        return f"{self.location.name}#{row + 1}"
