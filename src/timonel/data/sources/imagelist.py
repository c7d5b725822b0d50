"""Tables that list images, as in TFRecorder and AutoML: ``split,image_uri,label``.

Columns may be in any order, and a CSV file may have no header. Paths are relative to the table or
to the current directory. Rows without a split, or with ``UNASSIGNED``, are divided by fractions;
``DISCARD`` leaves a row out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from timonel.data.schema import (
    COLUMN_PREFIX,
    IMAGE_ENDINGS,
    IMAGE_FEATURE,
    ColumnRole,
    Split,
    Task,
    type_word,
)
from timonel.data.sources.arrow import as_texts, has_several_labels
from timonel.data.sources.base import (
    Description,
    Entry,
    Raw,
    RawFiles,
    SourceOptions,
    UnusableError,
)
from timonel.data.sources.columns import Kinds
from timonel.data.sources.images import image_schema
from timonel.data.sources.roles import check_splits
from timonel.data.sources.table import TableSource
from timonel.data.sources.tablefile import TableFile
from timonel.data.sources.tables import is_table, peek
from timonel.data.statistics import Statistics, merged
from timonel.errors import DataError, SpecError
from timonel.storage.digests import digest_lines
from timonel.storage.location import Location
from timonel.storage.uris import without_credentials

_IMAGE_COLUMN = "image_uri"


class ImageListSource(TableSource):
    """Images listed in a table, with their labels and splits."""

    plugin: ClassVar[str] = "image-list"
    kind: ClassVar[str] = "images"
    precedence: ClassVar[int] = 2

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

    def read(self, entry: Entry) -> Raw:
        """Read an image and decode it once to verify it."""
        try:
            raw = super().read(entry)
        except UnusableError as error:
            reason = error.reason.removeprefix(f"column {self._image!r}: ")
            place = self._file.place(entry.ref[0])
            raise UnusableError(entry.key, f"{reason} ({place})") from error
        feature = COLUMN_PREFIX + self._image
        contents: Any = raw.features[feature]
        if len(contents) > 1:
            raise UnusableError(
                entry.key, f"{len(contents)} images", hint="use --kind table for several per row"
            )
        return Raw({IMAGE_FEATURE: contents[0]}, raw.facts[feature].images[0])

    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:
        """Summarise the images; the digest also covers the list."""
        digest = digest_lines([self._file.digest, files.digest])
        return Description(
            image_schema(merged(statistics.values()), self.location),
            digest,
            files.count + self._file.files,
            files.bytes,
        )

    def _read_table(self) -> TableFile:
        """Return the table with the names of the images as keys."""
        file = super()._read_table()
        image = _image_column(peek(self.location, self.options))
        if image is None:
            raise DataError(f"{self.location} has no column {_IMAGE_COLUMN!r} of image files")
        self._image = image
        keys: list[str] = []
        seen: set[str] = set()
        for row, uri in enumerate(as_texts(file.table[image]).to_pylist()):
            key = without_credentials(uri)
            keys.append(f"{key} ({file.key(row)})" if key in seen else key or file.key(row))
            seen.add(key)
        return replace(file, keys=keys)

    def _label_column(self, file: TableFile) -> str:
        names = file.table.column_names
        rest = [name for name in names if name not in {self._image, _named("split", names)}]
        found = self.options.label or _named("label", names) or (rest[0] if len(rest) == 1 else "")
        if found not in names:
            raise SpecError(
                f"the label column of {self.location} is not known",
                hint=f"name it with --label; the columns are {', '.join(names)}",
            )
        return found

    def _given_task(self, label: str) -> Task | None:
        task = super()._given_task(label)
        if task is None and not has_several_labels(self._file.table[label]):
            return "classification"
        return task

    def _role(self, name: str, column: Any) -> tuple[Kinds | None, ColumnRole]:
        given = self.options.columns.get(name)
        if name == self._image and given in {None, "image"}:
            return None, ColumnRole(name=name, role="image", values="names of images")
        if given not in {None, "split", "drop"}:
            raise SpecError(
                f"column {name!r} of {self.location} cannot be {type_word(given)}: a list of "
                "images has columns for the image, its label and its split",
                hint="use --kind table for further columns",
            )
        if given == "split" or (
            given is None and name == _named("split", self._file.table.column_names)
        ):
            check_splits(self.location, name, column)
            return None, ColumnRole(name=name, role="split", values="names of splits")
        if given is None and name == self.options.group_by:
            return super()._role(name, column)
        return None, ColumnRole(
            name=name, role="drop", note="not the image, its label or its split"
        )


def _named(word: str, names: Sequence[str]) -> str | None:
    return next((name for name in names if name.lower() == word), None)


def _image_column(columns: Mapping[str, Sequence[str]]) -> str | None:
    """Return the column ``image_uri``, or the first with only image names."""
    found = [
        name
        for name, values in columns.items()
        if values and all(value.strip().lower().endswith(IMAGE_ENDINGS) for value in values)
    ]
    named = [name for name in columns if name.strip().lower() == _IMAGE_COLUMN]
    return next(iter([*named, *found]), None)
