from __future__ import annotations

import pytest

from timonel.data.preprocessing import (
    ImagePreprocessing,
    Normalise,
    OneHot,
    Preprocessing,
    TablePreprocessing,
    parse_preprocessing,
    table_preprocessing,
)
from timonel.data.schema import CategoricalColumn, NumericColumn, TableSchema
from timonel.errors import CorruptError

IMAGE = ImagePreprocessing(channels=3, height=4, width=5)
TABLE = TablePreprocessing(
    columns=(
        Normalise(column="a", mean=1.5, std=2.0),
        OneHot(column="b", vocabulary=("x", "ñ")),
    )
)


@pytest.mark.parametrize("value", [IMAGE, TABLE])
def test_it_goes_through_json(value: Preprocessing) -> None:
    assert parse_preprocessing(value.model_dump_json()) == value
    assert parse_preprocessing(value.model_dump(mode="json")) == value
    assert parse_preprocessing({**value.model_dump(mode="json"), "later": 1}) == value


@pytest.mark.parametrize("value", ["{}", "no json", {"kind": "sound"}, {"kind": "image"}])
def test_other_values_are_refused(value: str | dict[str, str]) -> None:
    with pytest.raises(CorruptError, match="invalid preprocessing"):
        parse_preprocessing(value)


def test_a_table_keeps_the_order_of_its_columns() -> None:
    schema = TableSchema(
        label="y",
        columns=(
            CategoricalColumn(name="b", vocabulary=("x", "ñ")),
            NumericColumn(name="a", mean=1.5, std=2.0, minimum=0, maximum=9),
            NumericColumn(name="constant", mean=7, std=0, minimum=7, maximum=7),
        ),
    )
    spec = table_preprocessing(schema)
    assert spec.columns == (
        OneHot(column="b", vocabulary=("x", "ñ")),
        Normalise(column="a", mean=1.5, std=2.0),
        Normalise(column="constant", mean=7, std=1.0),
    )
    assert spec.width == 3 + 1 + 1
