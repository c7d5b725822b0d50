"""Schemas of dataset records, with statistics measured at conversion.

Stored in the manifest; unknown fields are ignored, because a later release may write more.
"""

from __future__ import annotations

import datetime as dt
import shlex
from typing import Annotated, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field

from timonel.errors import SpecError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

Task = Literal["classification", "multilabel", "regression"]
ImageFormat = Literal["jpeg", "png", "gif", "bmp", "webp"]
ImageCheck = Literal["decode", "structure"]
Compression = Literal["none", "gzip"]
ColumnType = Literal[
    "numeric",
    "categorical",
    "text",
    "date",
    "dmy",
    "mdy",
    "bytes",
    "numbers",
    "image",
    "mask",
    "boxes",
    "json",
    "split",
    "drop",
]

DateType = Literal["date", "dmy", "mdy"]
DATE_TYPES: tuple[DateType, ...] = ("date", "dmy", "mdy")
"""Dates; with the year last, the order of day and month, which differs between countries."""

_SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_COLUMN_TYPES: dict[str, ColumnType] = {
    **{name: name for name in get_args(ColumnType)},
    **dict.fromkeys(("number", "float", "int"), "numeric"),
    **dict.fromkeys(("category", "string", "str"), "categorical"),
}
_WORDS = {"numeric": "number", "categorical": "category"}
COLUMN_TYPE_NAMES = (
    "number (float, int), category (string), text, date (dmy, mdy), bytes, numbers (a list), "
    "image, mask, boxes, json, split (names of splits) or drop"
)
"""Column types as help texts and errors list them."""

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - shown without a zone

IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp", ".webp"),
    *(".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".svg", ".ico"),
)
"""Endings of the names of images, also of those that TensorFlow does not decode."""

PLAIN_NUMBERS = "write plain numbers such as 1234.50, without currency, percent or thousands signs"
"""Advice for a column of numbers in an unsupported notation."""

KEY_FEATURE = "key"
LABEL_FEATURE = "label"
IMAGE_FEATURE = "image"
COLUMN_PREFIX = "column/"
"""Prefix of columns in records: none collides with key or label."""


def split_named(name: str) -> Split | None:
    """Return the split that a name such as ``val`` means, or None."""
    return _SPLIT_NAMES.get(name.strip().lower())


def sort_labels(labels: set[str]) -> list[str]:
    """Return class names in the order of their numbers.

    Labels sort numerically if all are whole numbers, else alphabetically.
    """
    if all(label.isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def labels_of(label: str) -> list[str]:
    """Return the labels of a row with several, which are separated by bars."""
    return [each for each in label.split("|") if each]


def parse_column_type(word: str) -> ColumnType:
    """Return the column type for ``word``; ``float`` and ``string`` are aliases."""
    found = _COLUMN_TYPES.get(word.strip().lower())
    if found is None:
        raise SpecError(
            f"unknown column type {word!r}",
            hint=f"use {COLUMN_TYPE_NAMES}",
        )
    return found


def type_word(kind: str) -> str:
    """Return the word for a column type or role that users see and write."""
    return _WORDS.get(kind, kind)


def columns_option(name: str, kind: str) -> str:
    """Return the option that gives a column a type, to paste into a shell."""
    return f"--columns {shlex.quote(f'{name}={kind}')}"


def check_compression(word: str) -> Compression:
    """Return ``word`` as a validated compression."""
    for known in get_args(Compression):
        if word == known:
            return cast("Compression", word)
    raise SpecError(f"expected the compression none or gzip, got {word!r}")


class StoredValue(BaseModel):
    """Base of values read from files that another release may have written."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Spread(StoredValue):
    """Distribution of an integer over the records."""

    minimum: int
    median: int
    maximum: int


class ImageSchema(StoredValue):
    """Schema of records with one encoded image each."""

    type: Literal["images"] = "images"
    height: Spread
    width: Spread
    size: tuple[int, int] | None = Field(
        description="Height and width, if all images have the same."
    )
    channels: Literal[1, 3] = Field(description="1 if every image is grey, 3 otherwise.")
    formats: dict[ImageFormat, int] = Field(description="Number of images per file format.")


class StoredColumn(StoredValue):
    """Base of the columns of a table, each stored as a feature of the records."""

    name: str
    missing: int = Field(default=0, description="Missing values in the training split.")

    @property
    def feature(self) -> str:
        """Name of the column in a record."""
        return COLUMN_PREFIX + self.name

    @property
    def values(self) -> str:
        """Values and missing ones, in a few words."""
        missing = f"{self.missing:,} missing" if self.missing else ""
        return ", ".join(filter(None, [self._shown(), missing]))

    def _shown(self) -> str:
        raise NotImplementedError


class NumericColumn(StoredColumn):
    """Numeric column; statistics are of the training split, without missing values."""

    type: Literal["numeric"] = "numeric"
    mean: float
    std: float
    minimum: float
    maximum: float

    def _shown(self) -> str:
        return f"{self.minimum:g} to {self.maximum:g}, mean {self.mean:g}"


class WordColumn(StoredColumn):
    """Base of columns with words; the vocabulary is that of the training split, sorted."""

    vocabulary: tuple[str, ...] = ()
    dropped: int = Field(default=0, description="Rare words left out of the vocabulary.")


class CategoricalColumn(WordColumn):
    """Categorical column: each value is a word."""

    type: Literal["categorical"] = "categorical"

    def _shown(self) -> str:
        words = ", ".join(self.vocabulary[:3]) + (", ..." if len(self.vocabulary) > 3 else "")
        shown = words if len(words) <= 40 else f"{words[:40]}..."
        noun = "category" if len(self.vocabulary) == 1 else "categories"
        return f"{len(self.vocabulary):,} {noun}: {shown}"


class TextColumn(WordColumn):
    """Text as it is in the source, or JSON as text; an empty text is missing.

    JSON has no vocabulary.
    """

    type: Literal["text", "json"] = "text"
    longest: int = Field(description="Characters of the longest text.")

    def _shown(self) -> str:
        words = f", {len(self.vocabulary):,} words" if self.vocabulary else ""
        return f"up to {self.longest:,} characters{words}"


class BytesColumn(StoredColumn):
    """Bytes; an empty value is missing."""

    type: Literal["bytes"] = "bytes"
    longest: int = Field(description="Bytes of the longest value.")

    def _shown(self) -> str:
        return f"up to {self.longest:,} bytes"


class DateColumn(StoredColumn):
    """Points in time as whole seconds since 1970 in UTC; a missing one is -2^63."""

    type: Literal["date"] = "date"
    order: DateType = Field(default="date", description="Order of day and month in its texts.")
    minimum: int
    maximum: int

    def _shown(self) -> str:
        first, last = (_EPOCH + dt.timedelta(seconds=n) for n in (self.minimum, self.maximum))
        return f"{first} to {last} UTC"


class NumbersColumn(StoredColumn):
    """Lists of numbers."""

    type: Literal["numbers"] = "numbers"
    shortest: int = Field(description="Length of the shortest list; 0 if one is missing.")
    longest: int = Field(description="Length of the longest list.")

    def _shown(self) -> str:
        if self.shortest == self.longest:
            return f"{self.longest:,} numbers"
        return f"{self.shortest:,} to {self.longest:,} numbers"


class ImageColumn(StoredColumn):
    """Encoded images; sizes and formats are those of all splits."""

    type: Literal["image"] = "image"
    height: Spread
    width: Spread
    size: tuple[int, int] | None = Field(
        description="Height and width, if all images have the same."
    )
    channels: Literal[1, 3] = Field(description="1 if every image is grey, 3 otherwise.")
    formats: dict[ImageFormat, int] = Field(description="Number of images per file format.")
    fewest: int = Field(description="Smallest number of images in a row.")
    most: int = Field(description="Largest number of images in a row.")

    def _shown(self) -> str:
        count = "" if self.fewest == self.most == 1 else f"{self.fewest} to {self.most} of "
        return f"{count}{_pixels(self)}, {'grey' if self.channels == 1 else 'colour'}"


class MaskColumn(StoredColumn):
    """Images whose pixels are class numbers, one per row."""

    type: Literal["mask"] = "mask"
    height: Spread
    width: Spread
    size: tuple[int, int] | None = Field(
        description="Height and width, if all masks have the same."
    )
    formats: dict[ImageFormat, int] = Field(description="Number of masks per file format.")
    classes: tuple[int, ...] = Field(description="Class numbers of all masks.")

    def _shown(self) -> str:
        return f"{_pixels(self)}, {_classes(self.classes)}"


class BoxesColumn(StoredColumn):
    """Bounding boxes [ymin, xmin, ymax, xmax, class], as fractions of height and width.

    Records have five numbers per box; the class of a box without one is -1.
    """

    type: Literal["boxes"] = "boxes"
    most: int = Field(description="Largest number of boxes in a row.")
    classes: tuple[int, ...] = Field(default=(), description="Class numbers of the boxes.")

    def _shown(self) -> str:
        return f"up to {self.most:,} boxes, {_classes(self.classes)}"


def _pixels(images: ImageColumn | MaskColumn) -> str:
    height, width = images.height, images.width
    smallest, largest = f"{height.minimum}x{width.minimum}", f"{height.maximum}x{width.maximum}"
    return smallest if images.size else f"{smallest} to {largest} pixels"


def _classes(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    return f"classes {shown}" if numbers else "no classes"


Column = Annotated[
    NumericColumn
    | CategoricalColumn
    | TextColumn
    | BytesColumn
    | DateColumn
    | NumbersColumn
    | ImageColumn
    | MaskColumn
    | BoxesColumn,
    Field(discriminator="type"),
]


class ColumnRole(StoredValue):
    """How a conversion uses one column of its source, with the reason."""

    name: str
    role: ColumnType | Literal["label", "group"]
    values: str = Field(default="", description="Values and missing ones, in a few words.")
    note: str = Field(default="", description="Reason; empty if obvious.")
    is_doubtful: bool = Field(default=False, description="This use of the column loses values.")


class TableSchema(StoredValue):
    """Schema of records with one table row each."""

    type: Literal["table"] = "table"
    label: str = Field(description="Name of the label column.")
    columns: tuple[Column, ...]


Schema = Annotated[ImageSchema | TableSchema, Field(discriminator="type")]
