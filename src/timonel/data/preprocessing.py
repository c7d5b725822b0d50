"""What was done to records before a model saw them, as values that fit into JSON.

`timonel.data.preprocess` carries it out, in training and inside the exported model alike.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from timonel.data.schema import CategoricalColumn, TableSchema
from timonel.errors import CorruptError


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ImagePreprocessing(_Value):
    """Encoded images to float32 [B, height, width, channels]."""

    kind: Literal["image"] = "image"
    channels: Literal[1, 3, 4]
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    method: Literal["bilinear", "nearest", "bicubic", "area"] = "bilinear"
    scale: float = Field(default=1 / 255, description="Pixels from 0 to 255 are multiplied by it.")
    offset: float = Field(default=0.0, description="Added after that.")


class Normalise(_Value):
    """A number, less the mean, by the standard deviation; one that is missing becomes 0."""

    kind: Literal["normalise"] = "normalise"
    column: str
    mean: float
    std: float = Field(gt=0)

    @property
    def width(self) -> int:
        """Places in the vector."""
        return 1


class OneHot(_Value):
    """A word as a vector with a 1; the first place is for words outside the vocabulary."""

    kind: Literal["one-hot"] = "one-hot"
    column: str
    vocabulary: tuple[str, ...]

    @property
    def width(self) -> int:
        """Places in the vector."""
        return len(self.vocabulary) + 1


ColumnTransform = Annotated[Normalise | OneHot, Field(discriminator="kind")]


class TablePreprocessing(_Value):
    """Named columns to float32 [B, F], in the order of the columns."""

    kind: Literal["table"] = "table"
    columns: tuple[ColumnTransform, ...]
    features: Literal["vector", "columns"] = Field(
        default="vector", description="One vector, or the part of each column under its name."
    )

    @property
    def width(self) -> int:
        """Length of the vector (F)."""
        return sum(column.width for column in self.columns)


Preprocessing = ImagePreprocessing | TablePreprocessing

_ADAPTER: TypeAdapter[Preprocessing] = TypeAdapter(
    Annotated[Preprocessing, Field(discriminator="kind")]
)


def parse_preprocessing(value: dict[str, Any] | str) -> Preprocessing:
    """Read what ``model_dump(mode="json")`` or ``model_dump_json()`` has written.

    Raises:
        CorruptError: It is neither an image's nor a table's.
    """
    try:
        if isinstance(value, str):
            return _ADAPTER.validate_json(value)
        return _ADAPTER.validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise CorruptError(f"expected the preprocessing of images or a table: {message}") from error


def table_preprocessing(
    schema: TableSchema, features: Literal["vector", "columns"] = "vector"
) -> TablePreprocessing:
    """Return how to make a vector of a row: z-scores of numbers, one-hot words."""
    columns: list[Normalise | OneHot] = []
    for column in schema.columns:
        if isinstance(column, CategoricalColumn):
            columns.append(OneHot(column=column.name, vocabulary=column.vocabulary))
        else:
            # A constant column says nothing; its z-score is 0, not infinite.
            columns.append(Normalise(column=column.name, mean=column.mean, std=column.std or 1.0))
    return TablePreprocessing(columns=tuple(columns), features=features)
