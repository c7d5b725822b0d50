"""Tables with one row per record and one label column, of any format.

The table is kept in memory during conversion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from timonel.data.manifest import Rejected
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
from timonel.data.sources.arrow import as_texts, has_several_labels, is_text, kind_of, usable
from timonel.data.sources.base import (
    Description,
    Entry,
    Raw,
    RawFiles,
    Scan,
    Source,
    SourceOptions,
    UnusableError,
)
from timonel.data.sources.cells import Cells, group_rows
from timonel.data.sources.columns import (
    MISSING_WORDS,
    ROUNDED,
    Inference,
    Kinds,
    Markers,
    NumberColumn,
    Values,
    Words,
    categorical_column,
    count,
    has_codes,
    infer,
    is_row_id,
    multiple_labels,
    no_group,
    numeric_column,
    shorten,
    split_group,
    unassigned,
)
from timonel.data.sources.images import INCOMPARABLE
from timonel.data.sources.kinds import KINDS, Image
from timonel.data.sources.tablefile import TableFile
from timonel.data.sources.tables import is_table, read_table
from timonel.data.statistics import Statistics, merged
from timonel.errors import DataError, InputError, SpecError
from timonel.storage.digests import digest_lines
from timonel.storage.location import Location

_TASKS: Mapping[str, Task] = {"numeric": "regression", "categorical": "classification"}
"""Tasks that types of the label column mean."""

_FEW = 20
"""With more distinct whole numbers than this, a label means regression."""


class TableSource(Source):
    """Rows of a table, in file order."""

    plugin: ClassVar[str] = "table"
    kind: ClassVar[str] = "table"
    precedence: ClassVar[int] = 1

    @property
    def parallel(self) -> bool:
        """Whether rows name images, which several threads read faster."""
        return self._cells.has_images

    @property
    def is_remote(self) -> bool:
        """Whether rows name images of a bucket or a web server."""
        return self._cells.has_remote

    @classmethod
    def recognises(cls, location: Location, options: SourceOptions) -> bool:  # noqa: ARG003 - by name
        """Tell whether ``location`` is a file, folder or pattern of tables."""
        return is_table(location)

    def scan(self) -> Scan:
        """Read the file and determine the role of every column."""
        self._file = file = self._read_table()
        label = self._label_column(file)
        names = [name for name in file.table.column_names if name != label]
        self._task = self._given_task(label)
        self._check_options(file, names)
        roles: dict[str, ColumnRole] = {}
        self._warnings = list(file.warnings)
        self._columns: dict[str, Values] = {}
        self._cells = Cells(self.location)
        bad: dict[int, str] = {}
        row_ids: set[str] = set()
        for name in names:
            # One column at a time: masks and trimmed texts take as much memory as the column.
            kinds, roles[name] = self._role(name, file.table[name])
            role = roles[name].role
            if role in KINDS:
                kind = Image(self.options.check) if role == "image" else KINDS[role]
                self._cells.add(name, kind, file.table[name])
            elif kinds is not None and role == "numeric":
                self._columns[name] = NumberColumn.of(kinds)
                bad = dict.fromkeys(kinds.unusable(), name) | bad
                if name not in self.options.columns and is_row_id(kinds, name):
                    row_ids.add(name)
            elif kinds is not None and role == "categorical":
                known = self.options.vocabularies.get(name, ())
                self._columns[name] = Words.of(self._words(name, kinds.values, known))
        if len(row_ids) < len(self._columns) + len(self._cells.kinds):
            self._drop_row_ids(roles, row_ids)
        if not self._columns and not self._cells.kinds:
            dropped = "".join(f", {role.name}: {role.note}" for role in roles.values())
            raise DataError(
                f"{self.location} has no feature columns besides the label {label!r}{dropped}",
                hint="add columns, or keep one with --columns NAME=category",
            )
        task, labels = self._labels(label)
        unlabelled = {row: label for row, value in enumerate(labels) if value == ""}
        splits, discarded = self._splits(roles.values())
        left_out = discarded | bad.keys() | unlabelled.keys()
        rows = [row for row in range(len(labels)) if row not in left_out]
        entries = self._entries(labels, splits, rows, names)
        rejected = [*file.rejected, *self._rejected(bad | unlabelled, label)]
        self._check_labels({labels[row] for row in rows}, label, rejected)
        ignored = [f"{file.key(row)} (split DISCARD)" for row in sorted(discarded)]
        ordered = [
            roles.get(name) or ColumnRole(name=name, role="label", note=task)
            for name in file.table.column_names
        ]
        self._warnings += self._unknown_words()
        return Scan(entries, task, ignored, rejected, ordered, file.notes, self._warnings)

    def reopen(self) -> None:
        """Read the table again, but ask for no image."""
        self.scan()

    def read(self, entry: Entry) -> Raw:
        """Return one row's values: NaN or empty where missing.

        Raises:
            InputError: Another process scanned another version of the file.
        """
        row, images_modified = entry.ref if self._cells.has_images else (entry.ref, 0)
        if entry.modified ^ images_modified != self._file.modified:
            raise InputError(f"{self.location} changed during its conversion", hint="convert again")
        plain = {COLUMN_PREFIX + name: column[row] for name, column in self._columns.items()}
        if not self._cells.kinds:
            return Raw(plain)
        found = self._cells.read(entry.key, row)
        return replace(found, features={**plain, **found.features})

    def digest(self, entry: Entry) -> str | None:
        """Return a digest of a row with its label, or of its images."""
        if self._cells.has_images:
            return self._cells.digest(entry.ref[0])
        return f"{entry.group} {entry.label}"

    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:
        """Summarise the columns over the training split."""
        train, everything = statistics["train"], merged(statistics.values())
        columns: dict[str, Column] = {
            name: numeric_column(name, train.numbers[name])
            if isinstance(column, NumberColumn)
            else categorical_column(
                name, train.words[name], self.options.vocabularies.get(name, ())
            )
            for name, column in self._columns.items()
        }
        columns |= self._cells.describe(everything, train)
        file = self._file
        ordered = [columns[name] for name in file.table.column_names if name in columns]
        schema = TableSchema(label=self._label_column(file), columns=tuple(ordered))
        count = sum(images.heights.total() for images in everything.column_images.values())
        if not count:
            return Description(schema, file.digest, file.files, file.bytes)
        digest = digest_lines([file.digest, files.digest])
        return Description(schema, digest, file.files + count, file.bytes + files.bytes)

    def _words(
        self, name: str, values: Any, known: Collection[str], *, is_label: bool = False
    ) -> Any:
        """Return a column as texts, empty where missing; warn of texts such as ``NA``."""
        texts = as_texts(values)
        found = Markers.of(texts, known, is_typed=self._file.is_typed)
        self._warnings += found.warnings(name, is_label=is_label)
        return found.removed_from(texts)

    def _unknown_words(self) -> Iterator[str]:
        """Yield a warning for each column with words outside its given vocabulary."""
        for name, known in self.options.vocabularies.items():
            column = self._columns.get(name)
            if isinstance(column, Words) and (new := sorted({*column.words} - {*known, ""})):
                what = "1 word is" if len(new) == 1 else f"{len(new):,} words are"
                yield (
                    f"column {name}: {what} not in the vocabulary of the schema, such as "
                    f"{shorten(new[0])}; counted as unknown"
                )

    def _entries(
        self,
        labels: Sequence[str | float],
        splits: Sequence[Split | None],
        rows: Sequence[int],
        names: Sequence[str],
    ) -> Iterator[Entry]:
        """Yield the entries of the given rows, one by one: together they need much memory."""
        file, cells = self._file, self._cells
        size = max(1, file.bytes // max(1, file.table.num_rows))
        # Splits that the table assigns stay as they are; equal rows may be equal by chance.
        is_divided = not splits and not cells.has_images
        copies = group_rows(self._columns, cells) if is_divided else None
        together = self._split_groups(names)
        comparable = True
        for row, images in zip(rows, cells.all_images(rows), strict=True):
            comparable = comparable and (not images.size or images.group is not None)
            yield Entry(
                file.key(row),
                labels[row],
                size + images.size,
                [row, images.modified] if cells.has_images else row,
                splits[row] if splits else None,
                copies[row] if copies else images.group,
                file.modified ^ images.modified,
                together[row] if together else None,
            )
        if cells.has_remote and not comparable:
            self._warnings.append(INCOMPARABLE)

    def _split_groups(self, names: Sequence[str]) -> list[str | None]:
        """Return the group of each row that the user wants in one split; empty if not asked."""
        name = self.options.group_by
        if name is None:
            return []
        if name not in names:
            raise no_group(self.location, name, names)
        words = as_texts(self._file.table[name]).to_pylist()
        return [split_group(name, word) for word in words]

    def _read_table(self) -> TableFile:
        return read_table(self.location, self.options)

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
        every = file.table.column_names
        unknown = [name for name in self.options.columns if name not in every]
        if unknown:
            raise SpecError(
                f"{self.location} has no column {unknown[0]!r}",
                hint=f"the columns are {', '.join(every)}",
            )
        given = {*self.options.columns, self.options.group_by}
        if self.options.has_all_columns and (new := [name for name in names if name not in given]):
            raise DataError(
                f"column {new[0]!r} of {self.location} is not in the schema",
                hint=f"add it; '{new[0]}: drop' leaves it out",
            )
        if not file.table.num_rows:
            found = f": {file.rejected[0].key}: {file.rejected[0].reason}" if file.rejected else ""
            what = "no usable rows" if found else "no rows"
            raise DataError(f"{self.location} has {what}{found}")

    def _given_task(self, label: str) -> Task | None:
        """Return the given task, or the one that the given type of the label column means."""
        asked, given = self.options.task, self.options.columns.get(label)
        if given is None:
            return asked
        task = _TASKS.get(given)
        if task is None or asked not in {None, task}:
            raise SpecError(
                f"the label column {label!r} cannot be {given}"
                + (f" for {asked}" if asked else ""),
                hint="use number for a regression, or category for a classification",
            )
        return task

    def _role(self, name: str, column: Any) -> tuple[Kinds | None, ColumnRole]:
        """Return how to use a column, and its classified values if it has texts or numbers."""
        given = self.options.columns.get(name)
        if given in KINDS:
            return None, ColumnRole(name=name, role=given, note="as given")
        if given is None and name == self.options.group_by:
            return None, ColumnRole(name=name, role="group", note="equal values stay in one split")
        values, reason = usable(column)
        if values is None:
            return None, self._role_by_type(name, column, reason)
        kinds = Kinds.of(values)
        found = Inference(given) if given else infer(kinds, name, is_typed=self._file.is_typed)
        notes = ["as given" if given else found.note]
        if found.first_bad is not None:
            notes[0] += f" in {self._file.place(found.first_bad)}"
        if found.cure:
            notes[0] += f": {found.cure}"
        if found.role == "numeric":
            notes += self._numeric_notes(name, kinds)
        if found.role == "split":
            self._check_splits(name, values)
        is_doubtful = found.is_doubtful or ROUNDED in notes
        note = "; ".join(filter(None, notes))
        described = kinds.described_as(found.role)
        return kinds, ColumnRole(
            name=name, role=found.role, values=described, note=note, is_doubtful=is_doubtful
        )

    def _check_splits(self, name: str, values: Any) -> None:
        if wrong := unassigned(as_texts(values)):
            raise DataError(
                f"expected train, validation or test in column {name!r} of {self.location}, "
                f"got {shorten(wrong[0])}",
                hint=f"correct it, or ignore the column with --columns {name}=drop",
            )

    def _numeric_notes(self, name: str, kinds: Kinds) -> list[str]:
        if not count(kinds.number):
            raise DataError(
                f"column {name!r} of {self.location} has no finite numbers",
                hint=f"use --columns {name}=category, or =drop",
            )
        notes = [ROUNDED] if NumberColumn.of(kinds).is_rounded else []
        if bad := len(kinds.unusable()):
            one = "value is not a finite number: row"
            what = one if bad == 1 else "values are not finite numbers: rows"
            notes.append(f"{bad:,} {what} rejected")
        return notes

    def _role_by_type(self, name: str, column: Any, reason: str) -> ColumnRole:
        """Return the role of a column whose type has neither texts nor numbers."""
        given = self.options.columns.get(name)
        kind = kind_of(column) if given is None else None
        if kind is not None:
            return ColumnRole(name=name, role=kind, note=f"from the type {column.type}")
        if given not in {None, "drop"}:
            raise DataError(
                f"column {name!r} of {self.location} cannot be {given}: {reason}",
                hint="give it another type, or drop it",
            )
        return ColumnRole(name=name, role="drop", note=reason, is_doubtful=True)

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
        words = as_texts(self._file.table[found[0]]).to_pylist()
        discarded = {row for row, word in enumerate(words) if word.lower() == "discard"}
        return [split_named(word) for word in words], discarded

    def _labels(self, name: str) -> tuple[Task, list[str | float]]:
        """Return the task and each row's label; missing labels are empty."""
        column = self._file.table[name]
        asked = self._task
        if asked == "multilabel" or (asked is None and has_several_labels(column)):
            if is_text(column.type):
                column = self._words(name, column, self.options.labels, is_label=True)
            return "multilabel", [multiple_labels(value) for value in column.to_pylist()]
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
        task = self._task
        # A few words among numbers are errors of their rows.
        numeric = bad == 0 or (bad * 10 <= filled and task is None)
        if kinds.is_text and (self._file.is_typed or has_codes(kinds)):
            numeric = False
        if task == "regression" and bad * 10 > filled:
            raise DataError(
                f"a regression needs numbers, but the label column {name!r} has words",
                hint="choose another --label, or --task classification",
            )
        if not numeric and task != "regression":
            self._check_words(kinds, name)
            return "classification", self._classes(name, values)
        return self._numeric_labels(name, NumberColumn.of(kinds), values)

    def _classes(self, name: str, values: Any) -> list[str | float]:
        texts = self._words(name, values, self.options.labels, is_label=True)
        return list(Words.of(texts).texts())

    def _numeric_labels(
        self, name: str, column: NumberColumn, values: Any
    ) -> tuple[Task, list[str | float]]:
        numbers = column.values
        known = numbers[~np.isnan(numbers)]
        whole = bool(np.all(known == np.floor(known)))
        few = len(np.unique(known)) <= min(_FEW, max(2, len(known) // 2))
        task = self._task or ("classification" if whole and few else "regression")
        if task == "regression":
            return task, ["" if np.isnan(number) else float(number) for number in numbers]
        if whole and not column.is_rounded:
            return task, ["" if np.isnan(number) else str(int(number)) for number in numbers]
        return task, self._classes(name, values)

    def _check_words(self, kinds: Kinds, name: str) -> None:
        """Reject an unusable label column, such as free text or formatted numbers."""
        found = infer(kinds)
        if found.cure and self._task is None:
            raise DataError(
                f"column {name!r} of {self.location} is not usable as a label: {found.note}",
                hint=f"{found.cure}, or force it with --task classification",
            )
        if found.role == "drop" and found.note != "no values" and self._task is None:
            raise DataError(
                f"column {name!r} of {self.location} is not usable as a label: {found.note}",
                hint="choose another --label, or force it with --task classification",
            )

    def _rejected(self, bad: Mapping[int, str], label: str) -> list[Rejected]:
        """Return the rows with a bad value, by the first column that has one."""
        places = self._file.places(bad)
        found = []
        for row, name in sorted(bad.items()):
            value = self._file.table[name][row].as_py()
            text = "" if value is None else str(value).strip()
            reason = f"{shorten(text)} is not a finite number"
            hint = f"{PLAIN_NUMBERS}, or keep all values as words: --columns {name}=category"
            if name == label:
                reason, hint = f"no label but {shorten(text)}" if text else "no label", ""
                if text in MISSING_WORDS:
                    hint = f"to make a class of it, list {text!r} in the labels in a --schema"
            error = UnusableError(
                self._file.key(row),
                f"{reason} in column {name!r} in {places[row]}",
                hint=hint,
                column=name,
                value=text[:40],
            )
            found.append(error.rejected)
        return found

    def _check_labels(
        self, found: set[str | float], name: str, rejected: Sequence[Rejected]
    ) -> None:
        if len(found) < 2:
            what = f"only {found.pop()!r}" if found else "none"
            if rejected:
                first = rejected[0]
                what += f" ({len(rejected):,} rejected: {first.key}: {first.reason})"
            raise DataError(
                f"column {name!r} of {self.location} needs at least two labels, found {what}",
                hint="name the label column with --label",
            )
