"""Tables with one row per record and one label column, of any format.

The table is kept in memory during conversion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from timonel.data.manifest import Rejected
from timonel.data.schema import (
    COLUMN_PREFIX,
    PLAIN_NUMBERS,
    CategoricalColumn,
    ColumnRole,
    Split,
    TableSchema,
    Task,
    columns_option,
    split_named,
    type_word,
)
from timonel.data.sources.arrow import as_texts
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
from timonel.data.sources.cells import Cells, Hashes, group_rows, hashes_of, value_hashes
from timonel.data.sources.columns import (
    Kinds,
    NumberColumn,
    Values,
    WordArray,
    is_missing,
    numeric_column,
    shorten,
    vocabulary_of,
    why_unusable,
)
from timonel.data.sources.images import INCOMPARABLE
from timonel.data.sources.inference import is_row_id
from timonel.data.sources.kinds import KINDS, Image
from timonel.data.sources.labels import LabelColumn
from timonel.data.sources.listed import ListedFiles
from timonel.data.sources.markers import KEEP_WORD, MISSING_WORDS, usable_words
from timonel.data.sources.roles import column_role
from timonel.data.sources.tablefile import TableFile
from timonel.data.sources.tables import is_table, read_table
from timonel.data.statistics import Statistics, WordStatistics, merged
from timonel.errors import DataError, InputError, SpecError
from timonel.storage.digests import digest_lines
from timonel.storage.location import Location

_TASKS: Mapping[str, Task] = {"numeric": "regression", "categorical": "classification"}
"""Tasks that types of the label column mean."""


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

    @property
    def folder(self) -> str | None:
        """Folder of the images that rows name."""
        return self._cells.folder

    @classmethod
    def recognises(cls, location: Location, options: SourceOptions) -> bool:  # noqa: ARG003 - by name
        """Tell whether ``location`` is a file, folder or pattern of tables."""
        return is_table(location)

    def scan(self) -> Scan:
        """Read the file and determine the role of every column."""
        self._file = file = self._read_table()
        label = self._label_column(file)
        names = [name for name in file.table.column_names if name != label]
        given = self._given_task(label)
        self._check_options(file, names)
        roles: dict[str, ColumnRole] = {}
        self._warnings = list(file.warnings)
        self._columns: dict[str, Values] = {}
        self._dropped: dict[str, Hashes] = {}
        self._cells = Cells(self._files)
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
                self._columns[name] = self._words(name, kinds.values)
            elif role == "drop" and name in self.options.columns:
                self._keep_for_groups(name, file.table[name])
        if len(row_ids) < len(self._columns) + len(self._cells.kinds):
            self._drop_row_ids(roles, row_ids)
        if not self._columns and not self._cells.kinds:
            dropped = "".join(f", {role.name}: {role.note}" for role in roles.values())
            raise DataError(
                f"{self.location} has no feature columns besides the label {label!r}{dropped}",
                hint="add columns, or keep one with --columns NAME=TYPE, such as number or text",
            )
        column = LabelColumn(self.location, file, label, given, self.options.labels)
        task, labels = column.read()
        self._warnings += column.warnings
        unlabelled = {row: label for row, value in enumerate(labels) if value == ""}
        splits, discarded = self._splits(roles.values())
        left_out = discarded | bad.keys() | unlabelled.keys()
        rows = [row for row in range(len(labels)) if row not in left_out]
        entries = self._entries(labels, splits, rows, names)
        rejected = [*file.rejected, *self._rejected(bad | unlabelled, label)]
        column.check({labels[row] for row in rows}, rejected)
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
        """Return one row's values: NaN or empty where missing."""
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
        columns = dict(self._cells.describe(everything, train))
        for name, column in self._columns.items():
            columns[name] = (
                numeric_column(name, train.numbers[name])
                if isinstance(column, NumberColumn)
                else CategoricalColumn(name=name, missing=train.words[name].missing)
            )
        for name, described in columns.items():
            if described.type in {"categorical", "text"}:
                given = self.options.vocabularies.get(name, ())
                words = train.words.get(name, WordStatistics())
                found = vocabulary_of(words, given, self.options.max_vocabulary)
                columns[name] = described.model_copy(update=found)
        file = self._file
        ordered = [columns[name] for name in file.table.column_names if name in columns]
        schema = TableSchema(label=self._label_column(file), columns=tuple(ordered))
        count = sum(images.heights.total() for images in everything.column_images.values())
        if not count:
            return Description(schema, file.digest, file.files, file.bytes)
        digest = digest_lines([file.digest, files.digest])
        return Description(schema, digest, file.files + count, file.bytes + files.bytes)

    @property
    def _files(self) -> ListedFiles:
        options = self.options
        return ListedFiles(self.location, options.allow_http, options.allow_private)

    def _keep_for_groups(self, name: str, column: Any) -> None:
        """Keep a column that the user drops, unless it would have been dropped anyway."""
        undropped = self.options.model_copy(update={"columns": {}})
        kinds, found = column_role(self.location, self._file, name, column, undropped)
        if kinds is None or found.role in KINDS:
            if found.role in KINDS and found.role != "image":
                self._dropped[name] = value_hashes(column)
        elif found.role == "numeric" and not is_row_id(kinds, name):
            self._dropped[name] = hashes_of(NumberColumn.of(kinds))
        elif found.role == "categorical":
            texts, _ = usable_words(name, kinds.values, (), is_typed=self._file.is_typed)
            self._dropped[name] = hashes_of(WordArray.of(texts))

    def _words(self, name: str, values: Any) -> WordArray:
        known = self.options.vocabularies.get(name, ())
        texts, warnings = usable_words(name, values, known, is_typed=self._file.is_typed)
        self._warnings += warnings
        return WordArray.of(texts)

    def _unknown_words(self) -> Iterator[str]:
        """Yield a warning for each column with words outside its given vocabulary."""
        for name, known in self.options.vocabularies.items():
            column = self._columns.get(name)
            if isinstance(column, WordArray) and (new := sorted({*column.words} - {*known, ""})):
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
        copies = group_rows(self._columns, cells, self._dropped) if is_divided else None
        together = self._split_groups(names)
        if copies and copies.divided and not together:
            self._warnings.append(
                f"{copies.divided:,} rows are in groups of identical rows that exceed 1 % of the "
                "table; such rows are in several splits: if they are copies, remove them, or name "
                "a column of ids with --group-by"
            )
        comparable = True
        for row, images in zip(rows, cells.all_images(rows), strict=True):
            comparable = comparable and (not images.size or images.group is not None)
            yield Entry(
                file.key(row),
                labels[row],
                size + images.size,
                [row, images.modified] if cells.has_images else row,
                splits[row] if splits else None,
                copies.names[row] if copies else images.group,
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
            raise SpecError(
                f"{self.location} has no column {name!r} to group by",
                hint=f"the columns are {', '.join(names)}",
            )
        words = as_texts(self._file.table[name]).to_pylist()
        return [None if is_missing(word) else f"{name} {word}" for word in words]

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
            hint = f"name the label column with --label; the columns are {', '.join(names)}"
            if {*names}.issuperset(label.split(",")):
                hint = "make one column of them, with the class of each row, or classes as in a|b"
            raise DataError(f"{self.location} has no column {label!r}", hint=hint)
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
                f"the label column {label!r} cannot be {type_word(given)}"
                + (f" for {asked}" if asked else ""),
                hint="use number for a regression, or category for a classification",
            )
        return task

    def _role(self, name: str, column: Any) -> tuple[Kinds | None, ColumnRole]:
        """Return how to use a column, and its classified values if it has texts or numbers."""
        return column_role(self.location, self._file, name, column, self.options)

    def _drop_row_ids(self, roles: dict[str, ColumnRole], row_ids: set[str]) -> None:
        for name in row_ids:
            del self._columns[name]
            cure = f"keep it with {columns_option(name, 'number')}"
            note = f"row id: a different whole number in each row: {cure}"
            roles[name] = ColumnRole(name=name, role="drop", note=note, is_doubtful=True)

    def _splits(self, roles: Iterable[ColumnRole]) -> tuple[list[Split | None], set[int]]:
        """Return the split of each row, none if no column assigns them, and rows to discard."""
        found = [role.name for role in roles if role.role == "split"]
        if not found:
            return [], set()
        if len(found) > 1:
            raise SpecError(
                f"columns {found[0]!r} and {found[1]!r} both assign splits",
                hint=f"drop one with {columns_option(found[1], 'drop')}",
            )
        words = as_texts(self._file.table[found[0]]).to_pylist()
        discarded = {row for row, word in enumerate(words) if word.lower() == "discard"}
        return [split_named(word) for word in words], discarded

    def _rejected(self, bad: Mapping[int, str], label: str) -> list[Rejected]:
        """Return the rows with a bad value, by the first column that has one."""
        places = self._file.places(bad)
        found = []
        for row, name in sorted(bad.items()):
            value = self._file.table[name][row].as_py()
            text = "" if value is None else str(value).strip()
            reason = why_unusable(text)
            hint = f"{PLAIN_NUMBERS}, or keep all as words: {columns_option(name, 'category')}"
            if text.lstrip("+-").lower() in {"inf", "infinity"} or "too large" in reason:
                hint = "leave the value empty, which means missing, or correct it"
            if name == label:
                reason, hint = f"no label but {shorten(text)}" if text else "no label", ""
                if text in MISSING_WORDS:
                    hint = KEEP_WORD.format("class", "labels")
            error = UnusableError(
                self._file.key(row),
                f"{reason} in column {name!r} in {places[row]}",
                hint=hint,
                column=name,
                value=text[:40],
            )
            found.append(error.rejected)
        return found
