"""CSV files that list images, as in TFRecorder and AutoML: ``split,image_uri,label``.

Columns may be in any order, under a header. Paths are relative to the CSV file or to the current
directory. Rows without a split, or with ``UNASSIGNED``, are divided by fractions; ``DISCARD``
leaves a row out.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from timonel.data.schema import ColumnRole, Split, split_named
from timonel.data.sources.base import Description, Entry, RawFiles, Scan, UnusableError
from timonel.data.sources.columns import shorten, unassigned
from timonel.data.sources.csvfile import CsvFile, peek, read_csv
from timonel.data.sources.images import IMAGE_ENDINGS, ImageFolderSource
from timonel.data.statistics import Statistics
from timonel.errors import DataError, InputError, SpecError
from timonel.storage import local_path
from timonel.storage.digests import digest_file, digest_lines

_SAMPLE = 20
_IMAGE_COLUMN = "image_uri"


class ImageListSource(ImageFolderSource):
    """Images listed in a CSV file, with their labels and splits."""

    plugin: ClassVar[str] = "image-list"
    kind: ClassVar[str] = "images"
    precedence: ClassVar[int] = 1

    @classmethod
    def recognises(cls, location: Path) -> bool:
        """Tell whether ``location`` is a CSV file with an image column.

        The column is named ``image_uri``, or the file has at most three columns.
        """
        if not location.is_file() or location.suffix.lower() not in {".csv", ".tsv"}:
            return False
        names, rows = peek(location, _SAMPLE)
        if any(name.lower().endswith(IMAGE_ENDINGS) for name in names):
            raise DataError(
                f"the first line of {location} is not a header: {','.join(names)}",
                hint="add a first line such as split,image_uri,label",
            )
        column = _image_column(names, rows)
        return column is not None and (column.lower() == _IMAGE_COLUMN or len(names) <= 3)

    def scan(self) -> Scan:
        """Find the listed images."""
        file = read_csv(self.location)
        names, rows = peek(self.location, _SAMPLE)
        image = _image_column(names, rows)
        if image is None:
            raise DataError(f"{self.location} has no column {_IMAGE_COLUMN!r} of image files")
        roles = self._roles(file.table.column_names, image, file)
        column = {role.role: file.table[role.name].to_pylist() for role in roles}
        splits = column.get("split", [""] * file.table.num_rows)
        entries: list[Entry] = []
        ignored: list[str] = []
        rejected = list(file.rejected)
        seen: set[str] = set()
        for row, (uri, label, split) in enumerate(
            zip(column["image"], column["label"], splits, strict=True)
        ):
            key = uri if uri not in seen else f"{uri} ({self.location.name}#{row + 1})"
            seen.add(key)
            if split.strip().lower() == "discard":
                ignored.append(f"{key} (split DISCARD)")
                continue
            try:
                found = self._listed(key, uri, label.strip())
            except UnusableError as error:
                rejected.append(error.skipped)
            else:
                entries.append(replace(found, split=split_named(split)))
        self._check({str(entry.label) for entry in entries}, ignored)
        return Scan(
            entries=entries,
            task="classification",
            ignored=ignored,
            rejected=rejected,
            columns=roles,
            notes=file.notes,
            warnings=file.warnings,
        )

    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:
        """Summarise the images; the digest also covers the list."""
        found = super().describe(statistics, files)
        digest = digest_lines([digest_file(self.location), found.digest])
        return replace(found, digest=digest, files=found.files + 1)

    def _listed(self, key: str, uri: str, label: str) -> Entry:
        if not label:
            raise UnusableError(key, f"no label in {self.location.name}")
        try:
            path = local_path(uri) if "://" in uri else Path(uri.strip())
        except InputError as error:
            raise DataError(f"{key}: {error.message}", hint=error.hint) from error
        beside = self.location.parent / path
        path = beside if beside.exists() else path
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise UnusableError(key, "not a regular file")
        entry = self._entry(path, key, label, None)
        if entry is None:
            raise UnusableError(key, "not an image")
        return entry

    def _roles(self, names: Sequence[str], image: str, file: CsvFile) -> list[ColumnRole]:
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
        if split is not None and (wrong := unassigned(file.table[split])):
            raise DataError(
                f"expected train, validation or test in column {split!r} of {self.location}, "
                f"got {shorten(wrong[0])}",
                hint=f"correct it, or ignore the column with --columns {split}=drop",
            )
        roles = {image: "image", label: "label", split: "split"}
        return [
            ColumnRole.model_validate(
                {"name": name, "role": roles.get(name, "drop"), "note": _note(name, roles)}
            )
            for name in names
        ]


def _note(name: str, roles: Mapping[Any, str]) -> str:
    return "" if name in roles else "not the image, its label or its split"


def _image_column(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str | None:
    """Return the column ``image_uri``, or the first with only image names."""
    found = [
        name
        for index, name in enumerate(names)
        if rows
        and all(
            len(row) > index and row[index].strip().lower().endswith(IMAGE_ENDINGS) for row in rows
        )
    ]
    named = [name for name in names if name.strip().lower() == _IMAGE_COLUMN]
    return next(iter([*named, *found]), None)
