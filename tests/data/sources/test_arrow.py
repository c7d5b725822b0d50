"""Texts of values of any type."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timonel.batch.plan import PredictionSpec
from timonel.batch.readers import of_table
from timonel.batch.tables import to_input
from timonel.data.sources.arrow import as_texts, as_values, text_of, usable
from timonel.data.sources.cells import Cells
from timonel.data.sources.jsonlines import read_json_lines
from timonel.data.sources.kinds import KINDS
from timonel.data.sources.listed import ListedFiles
from timonel.data.sources.textfile import TextFile
from timonel.serving.signature import TensorSpec
from timonel.storage.location import Location

_NOON = dt.datetime(2024, 1, 31, 12, 0, 1, tzinfo=dt.UTC)
WORDS = [
    (pa.array([True, False, None]), ["true", "false", ""]),
    (pa.array([True, False]).dictionary_encode(), ["true", "false"]),
    (pa.array([1, None], pa.int16()), ["1", ""]),
    (
        pa.array([2.0, 0.1, float("nan"), -0.0, 1e20, 1e15]),
        ["2", "0.1", "", "0", "1e+20", "1" + 15 * "0"],
    ),
    (pa.array([0.1, 2.5, 3, 1e10], pa.float32()), ["0.1", "2.5", "3", "10000000000"]),
    (pa.array([0.5, 4], pa.float32()).cast(pa.float16()), ["0.5", "4"]),
    (pa.array([decimal.Decimal("0.50"), decimal.Decimal("2.00")]), ["0.50", "2.00"]),
    (pa.array([dt.date(2024, 1, 31), None]), ["2024-01-31", ""]),
    (pa.array([_NOON.replace(tzinfo=None)], pa.timestamp("ns")), ["2024-01-31 12:00:01"]),
    (pa.array([_NOON], pa.timestamp("us", "UTC")), ["2024-01-31 12:00:01Z"]),
    (pa.array([dt.time(1, 2, 3)]), ["01:02:03"]),
]


@pytest.mark.parametrize(
    ("column", "words"), WORDS, ids=lambda each: str(getattr(each, "type", ""))
)
def test_a_value_has_one_word_in_conversion_batch_and_request(
    column: Any, words: list[str]
) -> None:
    assert as_texts(column).to_pylist() == words
    found, _ = usable(column, is_category=True)
    assert found is not None
    assert found.to_pylist() == words
    cells = Cells(ListedFiles(None))
    cells.add("x", KINDS["text"], column)
    stored = [cells.read("", row).features["column/x"] for row in range(len(column))]
    assert [word or "" for word in stored] == words
    rows = pa.ListArray.from_arrays(pa.array([0, None, len(column)]), column)
    assert as_values(rows) == [words, None]
    job = PredictionSpec("m", 1, "", "", "", 8, "csv", {}, key="x")
    assert of_table(pa.table({"x": column}), words, job).keys == [*filter(None, words)]
    spec = TensorSpec("x", "DT_STRING", (-1,))
    for row, word in enumerate(words):  # alone: the rows of a batch must not matter
        assert as_texts(column.slice(row, 1)).to_pylist() == [word]
        assert to_input(column.slice(row, 1), spec, "x").tolist() == [word.encode()]
        value = column[row].as_py()
        if not pa.types.is_floating(column.type) or column.type == pa.float64():
            assert text_of(value) == word
            if value is None or isinstance(value, bool | int | float):
                assert to_input([value], spec, "x").tolist() == [word.encode()]


@given(st.one_of(st.floats(), st.floats(-2e10, 2e10), st.floats(9e-5, 2e-4)))
@example(1e10 - 0.5)
@example(1e10 + 0.5)
@example(1e-4)
def test_a_float_alone_has_the_word_of_its_column(value: float) -> None:
    assert text_of(value) == as_texts(pa.array([value]))[0].as_py()


def test_values_without_a_type_of_arrow() -> None:
    assert text_of(2**70) == str(2**70)
    assert text_of(np.float32(0.1)) == "0.1"
    assert text_of(" a ") == " a "
    assert text_of(Path("a")) == "a"


def test_dates_in_json_lines_are_texts(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"day": "2024-01-31", "more": {"at": ["2024-01-31 01:02:03"], "n": 1}},
        {"day": None, "list": [{"day": "2024-02-01"}]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    table = read_json_lines(TextFile(Location(path))).table
    assert table.to_pylist() == [{**rows[0], "list": None}, {**rows[1], "more": None}]
    assert table.column_names == ["day", "more", "list"]
