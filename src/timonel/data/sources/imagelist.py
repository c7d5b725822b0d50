"""Tables that list images, as in TFRecorder and AutoML: ``split,image_uri,label``.

Columns may be in any order, and a CSV file may have no header. Paths are relative to the table or
to the current directory. Rows without a split, or with ``UNASSIGNED``, are divided by fractions;
``DISCARD`` leaves a row out.
"""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

from timonel.data.schema import IMAGE_ENDINGS, ColumnRole, Split, Task, split_named
from timonel.data.sources.arrow import as_texts
from timonel.data.sources.base import (
    Description,
    Entry,
    RawFiles,
    Scan,
    SourceOptions,
    UnusableError,
)
from timonel.data.sources.columns import multiple_labels, no_group, shorten, split_group, unassigned
from timonel.data.sources.images import (
    INCOMPARABLE,
    REQUESTS,
    ImageFolderSource,
    RemoteImage,
    image_entry,
)
from timonel.data.sources.tablefile import TableFile, place_beside
from timonel.data.sources.tables import is_table, peek, read_table
from timonel.data.statistics import Statistics
from timonel.errors import DataError, NotFoundError, SpecError
from timonel.storage.digests import digest_lines
from timonel.storage.location import Location

_IMAGE_COLUMN = "image_uri"
_BATCH = 1000


class ImageListSource(ImageFolderSource):
    """Images listed in a table, with their labels and splits."""

    plugin: ClassVar[str] = "image-list"
    kind: ClassVar[str] = "images"
    precedence: ClassVar[int] = 2
    _has_remote = False

    @classmethod
    def recognises(cls, location: Location, options: SourceOptions) -> bool:
        """Tell whether ``location`` is a table with an image column.

        The column is named ``image_uri``, or the table has at most three columns.
        """
        if location.is_dir() or not is_table(location):
            return False
        columns = peek(location, options)
        column = _image_column(columns)
        return column is not None and (column.lower() == _IMAGE_COLUMN or len(columns) <= 3)

    @property
    def is_remote(self) -> bool:
        """Whether images are read over the network."""
        return self._has_remote

    def scan(self) -> Scan:
        """Find the listed images."""
        self._file = file = read_table(self.location, self.options)
        image = _image_column(peek(self.location, self.options))
        if image is None:
            raise DataError(f"{self.location} has no column {_IMAGE_COLUMN!r} of image files")
        roles = self._roles(file.table.column_names, image, file)
        column: dict[str, Sequence[str]] = {
            role.role: as_texts(file.table[role.name]).to_pylist()
            for role in roles
            if role.role != "drop"
        }
        task: Task = "classification"
        if self.options.task in {None, "multilabel"} and any("|" in s for s in column["label"]):
            task = "multilabel"
            column["label"] = [multiple_labels(text) for text in column["label"]]
        for name in ("split", "group"):
            column.setdefault(name, [""] * file.table.num_rows)
        entries: list[Entry] = []
        ignored: list[str] = []
        rejected = list(file.rejected)
        for found in self._read_rows(column):
            if isinstance(found, str):
                ignored.append(found)
            elif isinstance(found, UnusableError):
                rejected.append(found.rejected)
            else:
                entries.append(found)
        self._check({str(entry.label) for entry in entries}, ignored)
        self._has_remote = any("://" in entry.ref for entry in entries)
        comparable = all(entry.group is not None for entry in entries)
        return Scan(
            entries=entries,
            task=task,
            ignored=ignored,
            rejected=rejected,
            columns=roles,
            notes=file.notes,
            warnings=file.warnings if comparable else [*file.warnings, INCOMPARABLE],
        )

    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:
        """Summarise the images; the digest also covers the list."""
        found = super().describe(statistics, files)
        digest = digest_lines([self._file.digest, found.digest])
        return replace(found, digest=digest, files=found.files + self._file.files)

    def _read_rows(
        self, column: Mapping[str, Sequence[str]]
    ) -> Iterator[Entry | UnusableError | str]:
        """Yield the entry of each row, what is wrong with it, or the key of a row to leave out."""
        seen: set[str] = set()

        def keyed() -> Iterator[tuple[str, str, str, str, str]]:
            used = [column[role] for role in ("image", "label", "split", "group")]
            for row, (uri, label, split, group) in enumerate(zip(*used, strict=True)):
                key = uri if uri not in seen else f"{uri} ({self._file.key(row)})"
                seen.add(key)
                yield key, uri, label, split, group

        rows = keyed()
        with ThreadPoolExecutor(REQUESTS, thread_name_prefix="list") as pool:
            while batch := list(itertools.islice(rows, _BATCH)):
                yield from pool.map(self._read_row, batch)

    def _read_row(self, row: tuple[str, str, str, str, str]) -> Entry | UnusableError | str:
        key, uri, label, split, group = row
        if split.lower() == "discard":
            return f"{key} (split DISCARD)"
        try:
            found = self._listed(key, uri, label, split_named(split))
            return replace(found, split_group=split_group(self.options.group_by, group))
        except UnusableError as error:
            return error

    def _listed(self, key: str, uri: str, label: str, split: Split | None) -> Entry:
        if not uri:
            raise UnusableError(key or self._file.name, "no image")
        if not label:
            raise UnusableError(key, f"no label in {self._file.name}")
        try:
            place = place_beside(self.location, uri)
        except SpecError as error:
            raise UnusableError(key, error.message) from error
        if not place.is_local:
            try:
                return RemoteImage(place.uri, place.blob()).entry(key, label, split)
            except NotFoundError as error:
                raise UnusableError(key, "not found") from error
        path = place.path
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise UnusableError(key, "not a regular file")
        entry = image_entry(path, key, label, split)
        if entry is None:
            raise UnusableError(key, "not an image")
        return entry

    def _roles(self, names: Sequence[str], image: str, file: TableFile) -> list[ColumnRole]:
        label = self.options.label or next((n for n in names if n.lower() == "label"), None)
        split = next((n for n in names if n.lower() == "split"), None)
        rest = [name for name in names if name not in {image, split}]
        if label is None and len(rest) == 1:
            label = rest[0]
        if label is None or label not in names:
            raise SpecError(
                f"the label column of {self.location} is not known",
                hint=f"name it with --label; the columns are {', '.join(names)}",
            )
        given = self.options.columns
        if unknown := [name for name in given if name not in names]:
            raise SpecError(
                f"{self.location} has no column {unknown[0]!r}",
                hint=f"the columns are {', '.join(names)}",
            )
        split = next((name for name, kind in given.items() if kind == "split"), split)
        if split is not None and given.get(split) == "drop":
            split = None
        if split is not None and (wrong := unassigned(as_texts(file.table[split]))):
            raise DataError(
                f"expected train, validation or test in column {split!r} of {self.location}, "
                f"got {shorten(wrong[0])}",
                hint=f"correct it, or ignore the column with --columns {split}=drop",
            )
        group = self.options.group_by
        if group is not None and group not in names:
            raise no_group(self.location, group, names)
        roles = {image: "image", label: "label", split: "split", group: "group"}
        return [
            ColumnRole.model_validate(
                {"name": name, "role": roles.get(name, "drop"), "note": _note(name, roles)}
            )
            for name in names
        ]


def _note(name: str, roles: Mapping[Any, str]) -> str:
    return "" if name in roles else "not the image, its label or its split"


def _image_column(columns: Mapping[str, Sequence[str]]) -> str | None:
    """Return the column ``image_uri``, or the first with only image names."""
    found = [
        name
        for name, values in columns.items()
        if values and all(value.strip().lower().endswith(IMAGE_ENDINGS) for value in values)
    ]
    named = [name for name in columns if name.strip().lower() == _IMAGE_COLUMN]
    return next(iter([*named, *found]), None)
