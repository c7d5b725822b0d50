"""Preprocessing of records, as JSON-compatible values.

`timonel.data.preprocess` applies it, both in training and inside the exported model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from timonel.data.schema import CategoricalColumn, TableSchema
from timonel.errors import CorruptError


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


ColumnTransform = Annotated[Normalise | OneHot, Field(discriminator="kind")]


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
        return sum(column.width for column in self.columns)


Preprocessing = ImagePreprocessing | TablePreprocessing

_ADAPTER: TypeAdapter[Preprocessing] = TypeAdapter(
    Annotated[Preprocessing, Field(discriminator="kind")]
)


def load_options(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the options of `timonel.data.load` that give this preprocessing."""
    if isinstance(preprocessing, TablePreprocessing):
        return {"features": preprocessing.features}
    return {
        "image_size": (preprocessing.height, preprocessing.width),
        **preprocessing.model_dump(exclude={"kind", "height", "width"}),
    }


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
    schema: TableSchema, features: Literal["vector", "columns"] = "vector"
) -> TablePreprocessing:
    """Return the preprocessing of rows: z-scores of numbers, one-hot words."""
    columns: list[Normalise | OneHot] = []
    for column in schema.columns:
        if isinstance(column, CategoricalColumn):
            columns.append(OneHot(column=column.name, vocabulary=column.vocabulary))
        else:
            # A constant column carries no information; its z-score is 0, not infinite.
            columns.append(Normalise(column=column.name, mean=column.mean, std=column.std or 1.0))
    return TablePreprocessing(columns=tuple(columns), features=features)
