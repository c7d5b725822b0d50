"""Tables with one row per record and one label column, of any format.

The table is kept in memory during conversion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from timonel.data.schema import (
    COLUMN_PREFIX,
    Column,
    ColumnRole,
    Split,
    TableSchema,
    Task,
    split_named,
)
from timonel.data.sources.arrow import as_texts, usable
from timonel.data.sources.base import (
    Description,
    Entry,
    Raw,
    RawFiles,
    Scan,
    Source,
    SourceOptions,
)
from timonel.data.sources.columns import (
    Inference,
    Kinds,
    NumberColumn,
    Values,
    Words,
    as_numeric,
    categorical_column,
    count,
    infer,
    is_row_id,
    numeric_column,
    shorten,
    unassigned,
)
from timonel.data.sources.tablefile import TableFile
from timonel.data.sources.tables import is_table, read_table
from timonel.data.statistics import Statistics
from timonel.errors import DataError, InputError, SpecError
from timonel.storage.location import Location

_FEW = 20
"""With more distinct whole numbers than this, a label means regression."""


class TableSource(Source):
    """Rows of a table, in file order."""

    plugin: ClassVar[str] = "table"
    kind: ClassVar[str] = "table"
    parallel: ClassVar[bool] = False
    precedence: ClassVar[int] = 1

    @classmethod
    def recognises(cls, location: Location, options: SourceOptions) -> bool:  # noqa: ARG003 - by name
        """Tell whether ``location`` is a file, folder or pattern of tables."""
        return is_table(location)

    def scan(self) -> Scan:
        """Read the file and determine the role of every column."""
        self._file = file = read_table(self.location, self.options)
        label = self._label_column(file)
        names = [name for name in file.table.column_names if name != label]
        self._check_options(file, names)
        roles: dict[str, ColumnRole] = {}
        self._columns: dict[str, Values] = {}
        row_ids: set[str] = set()
        for name in names:
            # One column at a time: masks and trimmed texts take as much memory as the column.
            values, reason = usable(file.table[name])
            if values is None:
                roles[name] = self._unusable(name, reason)
                continue
            kinds = Kinds.of(values)
            roles[name] = self._role(name, kinds)
            if roles[name].role == "numeric":
                self._columns[name] = NumberColumn.of(kinds)
                if name not in self.options.columns and is_row_id(kinds, name):
                    row_ids.add(name)
            elif roles[name].role == "categorical":
                self._columns[name] = Words.of(as_texts(kinds.values))
        if len(row_ids) < len(self._columns):
            self._drop_row_ids(roles, row_ids)
        if not self._columns:
            dropped = "".join(f", {role.name}: {role.note}" for role in roles.values())
            raise DataError(
                f"{self.location} has no feature columns besides the label {label!r}{dropped}",
                hint="add columns, or keep one with --columns NAME=categorical",
            )
        task, labels = self._labels(label)
        kept, rejected = self._with_label(labels, label)
        splits, discarded = self._splits(roles.values())
        size = max(1, file.bytes // max(1, file.table.num_rows))
        entries = [
            Entry(
                file.key(row),
                labels[row],
                size,
                row,
                splits[row] if splits else None,
                modified=file.modified,
            )
            for row in kept
            if row not in discarded
        ]
        rejected = [*file.rejected, *rejected]
        self._check_labels(entries, label, rejected)
        ignored = [f"{file.key(row)} (split DISCARD)" for row in sorted(discarded)]
        ordered = [
            roles.get(name) or ColumnRole(name=name, role="label", note=task)
            for name in file.table.column_names
        ]
        return Scan(entries, task, ignored, rejected, ordered, file.notes, file.warnings)

    def read(self, entry: Entry) -> Raw:
        """Return one row's values: NaN or empty where missing.

        Raises:
            InputError: Another process scanned another version of the file.
        """
        row: int = entry.ref
        if entry.modified != self._file.modified:
            raise InputError(f"{self.location} changed during its conversion", hint="convert again")
        return Raw({COLUMN_PREFIX + name: column[row] for name, column in self._columns.items()})

    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:  # noqa: ARG002 - rows have none
        """Summarise the columns over the training split."""
        train = statistics["train"]
        columns: list[Column] = [
            numeric_column(name, train.numbers[name])
            if isinstance(column, NumberColumn)
            else categorical_column(name, train.words[name])
            for name, column in self._columns.items()
        ]
        file = self._file
        schema = TableSchema(label=self._label_column(file), columns=tuple(columns))
        return Description(schema, file.digest, file.files, file.bytes)

    def _label_column(self, file: TableFile) -> str:
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

    def _check_options(self, file: TableFile, names: Sequence[str]) -> None:
        unknown = [name for name in self.options.columns if name not in names]
        if unknown:
            raise SpecError(
                f"{self.location} has no column {unknown[0]!r}",
                hint=f"the columns are {', '.join(names)}",
            )
        if not file.table.num_rows:
            raise DataError(f"{self.location} has no rows")

    def _role(self, name: str, kinds: Kinds) -> ColumnRole:
        given = self.options.columns.get(name)
        if given is None:
            found = infer(kinds, name, is_typed=self._file.is_typed)
        elif given == "numeric":
            found = as_numeric(kinds)
            if found.bad * 2 >= len(kinds.values) - count(kinds.missing):
                raise self._no_number(name, found.first_bad)
        else:
            found = Inference(given)
        if found.role == "split" and (wrong := unassigned(as_texts(kinds.values))):
            raise DataError(
                f"expected train, validation or test in column {name!r} of {self.location}, "
                f"got {shorten(wrong[0])}",
                hint="correct it, or give the column another type",
            )
        note = found.note if given is None else "; ".join(filter(None, ["as given", found.note]))
        if found.first_bad is not None:
            note += f" in {self._file.place(found.first_bad)}"
        if found.cure:
            note += f": {found.cure}"
        return ColumnRole(name=name, role=found.role, note=note, is_doubtful=found.is_doubtful)

    def _drop_row_ids(self, roles: dict[str, ColumnRole], row_ids: set[str]) -> None:
        note = "row id: a different whole number in each row"
        for name in row_ids:
            del self._columns[name]
            roles[name] = ColumnRole(name=name, role="drop", note=note, is_doubtful=True)

    def _no_number(self, name: str, row: int | None) -> DataError:
        if row is None:
            return DataError(f"column {name!r} of {self.location} has no finite numbers")
        value = shorten(self._file.table[name][row].as_py())
        return DataError(
            f"expected numbers in column {name!r} of {self.location}, "
            f"got {value} in {self._file.place(row)}",
            hint="correct it, or make the column categorical",
        )

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
        words = as_texts(self._file.table[found[0]]).to_pylist()
        discarded = {row for row, word in enumerate(words) if word.lower() == "discard"}
        return [split_named(word) for word in words], discarded

    def _labels(self, name: str) -> tuple[Task, list[str | float]]:
        """Return the task and each row's label; missing labels are empty."""
        column = self._file.table[name]
        values, reason = usable(column)
        if values is None:
            raise DataError(
                f"column {name!r} of {self.location} is not usable as a label: {reason}",
                hint="choose another --label",
            )
        if pa.types.is_boolean(column.type):
            values = as_texts(column)
        kinds = Kinds.of(values)
        bad, filled = count(kinds.bad), len(values) - count(kinds.missing)
        task = self.options.task
        # A few words among numbers are errors of their rows.
        numeric = bad == 0 or (bad * 10 <= filled and task is None)
        if kinds.is_text and self._file.is_typed:
            numeric = False
        if task == "regression" and bad * 10 > filled:
            raise DataError(
                f"a regression needs numbers, but the label column {name!r} has words",
                hint="choose another --label, or --task classification",
            )
        if not numeric and task != "regression":
            self._check_words(kinds, name)
            return "classification", list(Words.of(as_texts(values)).texts())
        return self._numeric_labels(NumberColumn.of(kinds), values)

    def _numeric_labels(self, column: NumberColumn, values: Any) -> tuple[Task, list[str | float]]:
        numbers = column.values
        known = numbers[~np.isnan(numbers)]
        whole = bool(np.all(known == np.floor(known)))
        few = len(np.unique(known)) <= min(_FEW, max(2, len(known) // 2))
        task = self.options.task or ("classification" if whole and few else "regression")
        if task == "regression":
            return task, ["" if np.isnan(number) else float(number) for number in numbers]
        if whole and not column.is_rounded:
            return task, ["" if np.isnan(number) else str(int(number)) for number in numbers]
        return task, list(Words.of(as_texts(values)).texts())

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

    def _with_label(
        self, labels: Sequence[str | float], name: str
    ) -> tuple[list[int], list[tuple[str, str]]]:
        kept = [row for row, label in enumerate(labels) if label != ""]
        file = self._file
        places = file.places([row for row, label in enumerate(labels) if label == ""])
        rejected = []
        for row, place in places.items():
            value = file.table[name][row].as_py()
            text = "" if value is None else str(value).strip()
            found = f"no label but {shorten(text)}" if text else "no label"
            rejected.append((file.key(row), f"{found} in column {name!r} in {place}"))
        return kept, rejected

    def _unusable(self, name: str, reason: str) -> ColumnRole:
        """Return the role of a column whose type has neither texts nor numbers."""
        if self.options.columns.get(name, "drop") != "drop":
            raise DataError(
                f"column {name!r} of {self.location} cannot be {self.options.columns[name]}: "
                f"{reason}",
                hint="give it another type in the file, or drop it",
            )
        return ColumnRole(name=name, role="drop", note=reason, is_doubtful=True)

    def _check_labels(
        self, entries: Sequence[Entry], name: str, rejected: Sequence[tuple[str, str]]
    ) -> None:
        found = {entry.label for entry in entries}
        if len(found) < 2:
            what = f"only {found.pop()!r}" if found else "none"
            if rejected:
                what += f" ({len(rejected):,} rejected: {': '.join(rejected[0])})"
            raise DataError(
                f"column {name!r} of {self.location} needs at least two labels, found {what}",
                hint="name the label column with --label",
            )
