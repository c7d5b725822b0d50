"""Schemas of dataset records, with statistics measured at conversion.

Stored in the manifest; unknown fields are ignored, because a later release may write more.
"""

from __future__ import annotations

from typing import Annotated, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field

from timonel.errors import SpecError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

Task = Literal["classification", "regression"]
ImageFormat = Literal["jpeg", "png", "gif", "bmp", "webp"]
Compression = Literal["none", "gzip"]
ColumnType = Literal["numeric", "categorical", "split", "drop"]

_SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_COLUMN_TYPES: dict[str, ColumnType] = {
    **dict.fromkeys(("numeric", "number", "float", "int"), "numeric"),
    **dict.fromkeys(("categorical", "category", "string", "str"), "categorical"),
    **dict.fromkeys(("split",), "split"),
    **dict.fromkeys(("drop",), "drop"),
}

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


def parse_column_type(word: str) -> ColumnType:
    """Return the column type for ``word``; ``float`` and ``string`` are aliases.

    Raises:
        SpecError: The type is unknown.
    """
    found = _COLUMN_TYPES.get(word.strip().lower())
    if found is None:
        raise SpecError(
            f"unknown column type {word!r}",
            hint="use numeric (or float, int), categorical (or string), split or drop",
        )
    return found


def check_compression(word: str) -> Compression:
    """Return ``word`` as a validated compression.

    Raises:
        SpecError: The compression is unknown.
    """
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


class NumberSummary(StoredValue):
    """Distribution of a number; without values all but ``missing`` is 0."""

    count: int = Field(description="Values that are not missing.")
    missing: int
    mean: float
    std: float
    minimum: float
    maximum: float


class WordSummary(StoredValue):
    """Distribution of a word."""

    count: int = Field(description="Values that are not missing.")
    missing: int
    distinct: int
    common: dict[str, int] = Field(description="Counts of the 100 most frequent words.")


class ImageSummary(StoredValue):
    """Distribution of image sizes and formats."""

    height: Spread
    width: Spread
    formats: dict[ImageFormat, int] = Field(description="Number of images per file format.")
    grey: int = Field(description="Number of grey images.")


class SplitSummary(StoredValue):
    """Statistics of the records of one split."""

    records: int
    labels: dict[str, int] = Field(default_factory=dict, description="Records of each class.")
    target: NumberSummary | None = Field(default=None, description="Labels of a regression.")
    images: ImageSummary | None = None
    numbers: dict[str, NumberSummary] = Field(default_factory=dict, description="By column.")
    words: dict[str, WordSummary] = Field(default_factory=dict, description="By column.")


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


class NumericColumn(StoredValue):
    """Numeric column; statistics are of the training split, without missing values."""

    type: Literal["numeric"] = "numeric"
    name: str
    mean: float
    std: float
    minimum: float
    maximum: float
    missing: int = Field(default=0, description="Missing values in the training split.")

    @property
    def feature(self) -> str:
        """Name of the column in a record."""
        return COLUMN_PREFIX + self.name


class CategoricalColumn(StoredValue):
    """Categorical column; the vocabulary is that of the training split, sorted."""

    type: Literal["categorical"] = "categorical"
    name: str
    vocabulary: tuple[str, ...]
    dropped: int = Field(default=0, description="Rare words left out of the vocabulary.")
    missing: int = Field(default=0, description="Missing values in the training split.")

    @property
    def feature(self) -> str:
        """Name of the column in a record."""
        return COLUMN_PREFIX + self.name


Column = Annotated[NumericColumn | CategoricalColumn, Field(discriminator="type")]


class ColumnRole(StoredValue):
    """How a conversion uses one column of its source, with the reason."""

    name: str
    role: Literal["label", "numeric", "categorical", "split", "image", "drop"]
    note: str = Field(default="", description="Reason; empty if obvious.")
    is_doubtful: bool = Field(default=False, description="This use of the column loses values.")


class TableSchema(StoredValue):
    """Schema of records with one table row each."""

    type: Literal["table"] = "table"
    label: str = Field(description="Name of the label column.")
    columns: tuple[Column, ...]


Schema = Annotated[ImageSchema | TableSchema, Field(discriminator="type")]
