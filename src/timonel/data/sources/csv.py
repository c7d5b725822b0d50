"""CSV files with a header, one row per record, one label column.

The whole file is kept in memory as an Arrow table during conversion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from timonel.data.manifest import Skipped
from timonel.data.schema import (
    COLUMN_PREFIX,
    PLAIN_NUMBERS,
    Column,
    ColumnRole,
    Split,
    TableSchema,
    Task,
    split_named,
)
from timonel.data.sources.base import (
    Description,
    Entry,
    Raw,
    RawFiles,
    Scan,
    Source,
    UnusableError,
)
from timonel.data.sources.cells import Cells, FileFacts, group_rows
from timonel.data.sources.columns import (
    Inference,
    Kinds,
    NumberColumn,
    Values,
    Words,
    any_bar,
    categorical_column,
    count,
    infer,
    is_missing,
    is_row_id,
    multiple_labels,
    numeric_column,
    shorten,
    trim,
    unassigned,
)
from timonel.data.sources.csvfile import CsvFile, read_csv
from timonel.data.sources.kinds import KINDS
from timonel.data.statistics import Statistics, merged
from timonel.errors import DataError, SpecError
from timonel.storage.digests import digest_file, digest_lines

_FEW = 20
"""With more distinct whole numbers than this, a label means regression."""


class CsvSource(Source):
    """Rows of a CSV file, in file order."""

    plugin: ClassVar[str] = "csv"
    kind: ClassVar[str] = "table"
    parallel: ClassVar[bool] = False

    @classmethod
    def recognises(cls, location: Path) -> bool:
        """Tell whether ``location`` is a ``.csv`` or ``.tsv`` file."""
        return location.is_file() and location.suffix.lower() in {".csv", ".tsv"}

    def scan(self) -> Scan:
        """Read the file and determine the role of every column."""
        self._file = file = read_csv(self.location)
        label = self._label_column(file)
        names = [name for name in file.table.column_names if name != label]
        self._check_options(file, names)
        roles: dict[str, ColumnRole] = {}
        self._columns: dict[str, Values] = {}
        self._cells = Cells(self.location.parent)
        bad: dict[int, str] = {}
        row_ids: set[str] = set()
        for name in names:
            # One column at a time: masks and trimmed texts take as much memory as the column.
            kinds = Kinds.of(file.table[name])
            roles[name] = self._role(name, kinds)
            if roles[name].role == "numeric":
                self._columns[name] = NumberColumn.of(kinds)
                bad = dict.fromkeys(kinds.unusable(), name) | bad
                if name not in self.options.columns and is_row_id(kinds, name):
                    row_ids.add(name)
            elif roles[name].role == "categorical":
                self._columns[name] = Words.of(kinds.texts)
            elif kind := KINDS.get(roles[name].role):
                self._cells.add(name, kind, file.table[name])
        if len(row_ids) < len(self._columns):
            self._drop_row_ids(roles, row_ids)
        if not self._columns and not self._cells.kinds:
            dropped = "".join(f", {role.name}: {role.note}" for role in roles.values())
            raise DataError(
                f"{self.location} has no feature columns besides the label {label!r}{dropped}",
                hint="add columns, or keep one with --columns NAME=category",
            )
        task, labels = self._labels(label)
        rejected = {row: label for row, value in enumerate(labels) if value == ""}
        splits, discarded = self._splits(roles.values())
        entries = self._entries(labels, splits, discarded | bad.keys() | rejected.keys(), names)
        unusable = [*file.rejected, *self._rejected(bad | rejected, label)]
        self._check_labels(entries, label, unusable)
        ignored = [f"{self._key(row)} (split DISCARD)" for row in sorted(discarded)]
        ordered = [
            roles.get(name) or ColumnRole(name=name, role="label", note=task)
            for name in file.table.column_names
        ]
        return Scan(entries, task, ignored, unusable, ordered, file.notes, file.warnings)

    def read(self, entry: Entry) -> Raw:
        """Return one row's values: NaN or empty where missing."""
        row: int = entry.ref
        plain = {COLUMN_PREFIX + name: column[row] for name, column in self._columns.items()}
        if not self._cells.kinds:
            return Raw(plain)
        found = self._cells.read(entry.key, row)
        return replace(found, features={**plain, **found.features})

    def digest(self, entry: Entry) -> str | None:
        """Return a digest of a row with its label, or of its images."""
        if not self._cells.has_images:
            return f"{entry.group} {entry.label}"
        return self._cells.digest(entry.ref)

    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:
        """Summarise the columns over the training split."""
        train, everything = statistics["train"], merged(statistics.values())
        columns: dict[str, Column] = {
            name: numeric_column(name, train.numbers[name])
            if isinstance(column, NumberColumn)
            else categorical_column(name, train.words[name])
            for name, column in self._columns.items()
        }
        columns |= self._cells.describe(everything, train)
        ordered = [columns[name] for name in self._file.table.column_names if name in columns]
        schema = TableSchema(label=self._label_column(self._file), columns=tuple(ordered))
        digest, size = digest_file(self.location), self.location.stat().st_size
        if not self._cells.has_images:
            return Description(schema, digest, 1, size)
        count = sum(images.heights.total() for images in everything.column_images.values())
        digest = digest_lines([digest, files.digest])
        return Description(schema, digest, 1 + count, size + files.bytes)

    def _entries(
        self,
        labels: Sequence[str | float],
        splits: Sequence[Split | None],
        left_out: Collection[int],
        names: Sequence[str],
    ) -> list[Entry]:
        state = self.location.stat()
        size = max(1, state.st_size // max(1, self._file.table.num_rows))
        groups = None if self._cells.has_images else group_rows(self._columns, self._cells)
        together = self._split_groups(names)
        entries = []
        for row, label in enumerate(labels):
            if row in left_out:
                continue
            files = self._cells.files(row) if self._cells.has_images else FileFacts()
            entries.append(
                Entry(
                    self._key(row),
                    label,
                    size + files.size,
                    row,
                    splits[row] if splits else None,
                    groups[row] if groups else files.group,
                    max(state.st_mtime_ns, files.modified),
                    together[row] if together else None,
                )
            )
        return entries

    def _split_groups(self, names: Sequence[str]) -> list[str | None]:
        """Return the group of each row that the user wants in one split; empty if not asked."""
        name = self.options.group_by
        if name is None:
            return []
        if name not in names:
            raise SpecError(
                f"{self.location} has no column {name!r} to group by",
                hint=f"the columns are {', '.join(names)}",
            )
        words = trim(self._file.table[name]).to_pylist()
        return [None if is_missing(word) else f"{name} {word}" for word in words]

    def _label_column(self, file: CsvFile) -> str:
        names = file.table.column_names
        label = self.options.label
        if label is None:
            raise SpecError(
                f"the label column of {self.location} is not known",
                hint=f"name it with --label; the columns are {', '.join(names)}",
            )
        if label not in names:
            raise DataError(
                f"{self.location} has no column {label!r}",
                hint=f"name the label column with --label; the columns are {', '.join(names)}",
            )
        return label

    def _check_options(self, file: CsvFile, names: Sequence[str]) -> None:
        unknown = [name for name in self.options.columns if name not in names]
        if unknown:
            raise SpecError(
                f"{self.location} has no column {unknown[0]!r}",
                hint=f"the columns are {', '.join(names)}",
            )
        if not file.table.num_rows:
            raise DataError(f"{self.location} has a header but no rows")

    def _role(self, name: str, kinds: Kinds) -> ColumnRole:
        given = self.options.columns.get(name)
        if given is None and name == self.options.group_by:
            return ColumnRole(name=name, role="group", note="equal values stay in one split")
        found = infer(kinds, name) if given is None else Inference(given)
        if found.role == "numeric" and not count(kinds.number):
            raise DataError(
                f"column {name!r} of {self.location} has no finite numbers",
                hint=f"use --columns {name}=category, or =drop",
            )
        if found.role == "split" and (wrong := unassigned(kinds.texts)):
            raise DataError(
                f"expected train, validation or test in column {name!r} of {self.location}, "
                f"got {shorten(wrong[0])}",
                hint="correct it, or give the column another type",
            )
        note = found.note if given is None else "as given"
        if found.role == "numeric" and (bad := len(kinds.unusable())):
            what = (
                "value is not a finite number: row"
                if bad == 1
                else "values are not finite numbers: rows"
            )
            note = "; ".join(filter(None, [note, f"{bad:,} {what} rejected"]))
        if found.first_bad is not None:
            note += f" in line {self._file.line_of(found.first_bad)}"
        if found.cure:
            note += f": {found.cure}"
        return ColumnRole(name=name, role=found.role, note=note, is_doubtful=found.is_doubtful)

    def _drop_row_ids(self, roles: dict[str, ColumnRole], row_ids: set[str]) -> None:
        note = "row id: a different whole number in each row"
        for name in row_ids:
            del self._columns[name]
            roles[name] = ColumnRole(name=name, role="drop", note=note, is_doubtful=True)

    def _splits(self, roles: Iterable[ColumnRole]) -> tuple[list[Split | None], set[int]]:
        """Return the split of each row, and the rows to discard.

        The list of splits is empty if no column assigns them.
        """
        found = [role.name for role in roles if role.role == "split"]
        if not found:
            return [], set()
        if len(found) > 1:
            raise SpecError(
                f"columns {found[0]!r} and {found[1]!r} both assign splits",
                hint=f"drop one with --columns {found[1]}=drop",
            )
        words = self._file.table[found[0]].to_pylist()
        discarded = {row for row, word in enumerate(words) if word.strip().lower() == "discard"}
        return [split_named(word) for word in words], discarded

    def _labels(self, name: str) -> tuple[Task, list[str | float]]:
        """Return the task and each row's label; missing labels are empty."""
        asked = self.options.task
        values = self._file.table[name]
        if asked == "multilabel" or (asked is None and any_bar(values)):
            return "multilabel", [multiple_labels(value) for value in values.to_pylist()]
        kinds = Kinds.of(values)
        bad, filled = count(kinds.bad), len(kinds.texts) - count(kinds.missing)
        # A few words among numbers are errors of their rows.
        numeric = self.options.task == "regression" or (
            bad == 0 or (bad * 10 <= filled and self.options.task is None)
        )
        if self.options.task == "regression" and bad * 10 > filled:
            raise DataError(
                f"a regression needs numbers, but the label column {name!r} has words",
                hint="choose another --label, or --task classification",
            )
        if not numeric:
            self._check_words(kinds, name)
            return "classification", list(Words.of(kinds.texts).texts())
        numbers = NumberColumn.of(kinds).values
        known = numbers[~np.isnan(numbers)]
        whole = bool(np.all(known == np.floor(known)))
        few = len(np.unique(known)) <= min(_FEW, max(2, len(known) // 2))
        task = self.options.task or ("classification" if whole and few else "regression")
        if task == "regression":
            return task, ["" if np.isnan(number) else float(number) for number in numbers]
        if whole:
            return task, ["" if np.isnan(number) else str(int(number)) for number in numbers]
        return task, list(Words.of(kinds.texts).texts())

    def _check_words(self, kinds: Kinds, name: str) -> None:
        """Reject an unusable label column, such as free text or formatted numbers."""
        found = infer(kinds)
        if found.cure and self.options.task is None:
            raise DataError(
                f"column {name!r} of {self.location} is not usable as a label: {found.note}",
                hint=f"{found.cure}, or force it with --task classification",
            )
        if found.role == "drop" and found.note != "no values" and self.options.task is None:
            raise DataError(
                f"column {name!r} of {self.location} is not usable as a label: {found.note}",
                hint="choose another --label, or force it with --task classification",
            )

    def _rejected(self, bad: Mapping[int, str], label: str) -> list[Skipped]:
        """Return the rows with a bad value, by the first column that has one."""
        lines = self._file.lines_of(bad)
        found = []
        for row, name in sorted(bad.items()):
            value = self._file.table[name][row].as_py().strip()
            place = f"in column {name!r} in line {lines[row]}"
            if name == label:
                reason = f"no label but {shorten(value)}" if value else "no label"
                hint = ""
            else:
                reason = f"{shorten(value)} is not a finite number"
                hint = f"{PLAIN_NUMBERS}, or keep all values as words: --columns {name}=category"
            error = UnusableError(
                self._key(row), f"{reason} {place}", hint=hint, column=name, value=value[:40]
            )
            found.append(error.skipped)
        return found

    def _check_labels(
        self, entries: Sequence[Entry], name: str, rejected: Sequence[Skipped]
    ) -> None:
        found = {entry.label for entry in entries}
        if len(found) < 2:
            what = f"only {found.pop()!r}" if found else "none"
            if rejected:
                first = rejected[0]
                what += f" ({len(rejected):,} rejected: {first.key}: {first.reason})"
            raise DataError(
                f"column {name!r} of {self.location} needs at least two labels, found {what}",
                hint="name the label column with --label",
            )

    def _key(self, row: int) -> str:
        return f"{self.location.name}#{row + 1}"
