"""Preprocessing of records, as JSON-compatible values.

`timonel.data.preprocess` applies it, both in training and inside the exported model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from timonel.data.schema import (
    CategoricalColumn,
    Column,
    DateColumn,
    DateType,
    ImageColumn,
    MaskColumn,
    NumericColumn,
    TableSchema,
    TextColumn,
)
from timonel.errors import CorruptError, SpecError

PERIODS_S = (31_556_952, 7 * 86_400, 86_400)
"""A year, a week and a day, in seconds."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ImagePreprocessing(_Value):
    """Preprocessing of encoded images to float32 [B, height, width, channels]."""

    kind: Literal["image"] = "image"
    channels: Literal[1, 3, 4]
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    method: Literal["bilinear", "nearest", "bicubic", "area"] = "bilinear"
    scale: float = Field(default=1 / 255, description="Factor for pixels from 0 to 255.")
    offset: float = Field(default=0.0, description="Added to the scaled pixels.")
    shrink_on_load: bool = Field(
        default=False,
        description="Decode JPEGs at 1/2, 1/4 or 1/8 of their size if that covers the target size.",
    )


class Normalise(_Value):
    """Z-score of a number; 0 if the number is missing."""

    kind: Literal["normalise"] = "normalise"
    column: str
    mean: float
    std: float = Field(gt=0)

    @property
    def width(self) -> int:
        """Number of features."""
        return 1


class OneHot(_Value):
    """One-hot encoding of a word; index 0 is for unknown words."""

    kind: Literal["one-hot"] = "one-hot"
    column: str
    vocabulary: tuple[str, ...]

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.vocabulary) + 1


class MultiHot(_Value):
    """Words of a text: 1 for each that is in the vocabulary."""

    kind: Literal["multi-hot"] = "multi-hot"
    column: str
    vocabulary: tuple[str, ...]

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.vocabulary)


class DateParts(_Value):
    """Parts of a date: the place in the range, and day of the year, weekday and hour as angles.

    All are 0 if the date is missing.
    """

    kind: Literal["date-parts"] = "date-parts"
    column: str
    order: DateType = Field(default="date", description="Order of day and month in its texts.")
    minimum: int
    maximum: int

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 + 2 * len(PERIODS_S)


class Decode(_Value):
    """Decoding of a column that is neither a number nor a category."""

    kind: Literal["decode"] = "decode"
    stored: Column
    image: ImagePreprocessing | None = Field(default=None, description="Of images and masks.")

    @property
    def column(self) -> str:
        """Name of the column."""
        return self.stored.name


ColumnTransform = Annotated[
    Normalise | OneHot | MultiHot | DateParts | Decode, Field(discriminator="kind")
]


class TablePreprocessing(_Value):
    """Preprocessing of named columns to float32 [B, F], in column order."""

    kind: Literal["table"] = "table"
    columns: tuple[ColumnTransform, ...]
    features: Literal["vector", "columns"] = Field(
        default="vector", description="One vector per row, or one array per column."
    )

    @property
    def width(self) -> int:
        """Length of the feature vector (F)."""
        return sum(column.width for column in self.columns if not isinstance(column, Decode))


Preprocessing = ImagePreprocessing | TablePreprocessing

_ADAPTER: TypeAdapter[Preprocessing] = TypeAdapter(
    Annotated[Preprocessing, Field(discriminator="kind")]
)


def load_options(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the options of `timonel.data.load` that give this preprocessing."""
    if isinstance(preprocessing, TablePreprocessing):
        images = [
            column.image
            for column in preprocessing.columns
            if isinstance(column, Decode) and isinstance(column.stored, ImageColumn)
        ]
        options = {} if not images or images[0] is None else _image_options(images[0])
        return {"features": preprocessing.features, **options}
    return _image_options(preprocessing)


def _image_options(spec: ImagePreprocessing) -> dict[str, Any]:
    options = spec.model_dump(exclude={"kind", "height", "width"})
    return {"image_size": (spec.height, spec.width), **options}


def parse_preprocessing(value: dict[str, Any] | str) -> Preprocessing:
    """Parse the output of ``model_dump(mode="json")`` or ``model_dump_json()``.

    Raises:
        CorruptError: ``value`` is not the preprocessing of images or a table.
    """
    try:
        if isinstance(value, str):
            return _ADAPTER.validate_json(value)
        return _ADAPTER.validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise CorruptError(f"invalid preprocessing: {message}") from error


def table_preprocessing(
    schema: TableSchema,
    features: Literal["vector", "columns"] = "vector",
    images: Callable[[ImageColumn | MaskColumn], ImagePreprocessing] | None = None,
) -> TablePreprocessing:
    """Return the preprocessing of rows: z-scores, words, parts of dates, decoded values.

    ``images`` returns the preprocessing of a column of images or masks.
    """
    columns: list[Normalise | OneHot | MultiHot | DateParts | Decode] = []
    for column in schema.columns:
        if isinstance(column, CategoricalColumn):
            columns.append(OneHot(column=column.name, vocabulary=column.vocabulary))
        elif isinstance(column, NumericColumn):
            # A constant column carries no information; its z-score is 0, not infinite.
            columns.append(Normalise(column=column.name, mean=column.mean, std=column.std or 1.0))
        elif isinstance(column, DateColumn) and features == "vector":
            columns.append(
                DateParts(
                    column=column.name,
                    order=column.order,
                    minimum=column.minimum,
                    maximum=column.maximum,
                )
            )
        elif isinstance(column, TextColumn) and column.vocabulary and features == "vector":
            columns.append(MultiHot(column=column.name, vocabulary=column.vocabulary))
        elif features == "vector":
            raise SpecError(
                f"column {column.name!r} ({column.type}) does not fit into a vector",
                hint='use load(..., features="columns"), or drop the column in the conversion',
            )
        else:
            image = None
            if images is not None and isinstance(column, ImageColumn | MaskColumn):
                image = images(column)
            columns.append(Decode(stored=column, image=image))
    return TablePreprocessing(columns=tuple(columns), features=features)
