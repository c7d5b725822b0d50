"""Columns as inputs of a model."""

from __future__ import annotations

import csv
import datetime as dt
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from timonel.batch.tables import to_input
from timonel.batch.writers import Writer, join, to_arrow
from timonel.data.examples import decode_example
from timonel.data.records import read_records
from timonel.serving.signature import TensorSpec
from timonel.serving.status import StatusError


def spec(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec("x", dtype, (-1, *shape))


def test_text_of_a_csv_file() -> None:
    found = to_input(pa.array(["1", " 2.5 ", "NA", ""]), spec("DT_FLOAT"), "x")
    np.testing.assert_array_equal(found, np.array([1, 2.5, np.nan, np.nan], np.float32))
    assert found.dtype == np.float32
    assert to_input(pa.array(["1", "2"]), spec("DT_INT64"), "x").tolist() == [1, 2]
    assert to_input(pa.array(["true", "false"]), spec("DT_BOOL"), "x").tolist() == [True, False]
    assert to_input(pa.array(["é", None]), spec("DT_STRING"), "x").tolist() == ["é".encode(), b""]


@pytest.mark.parametrize(
    ("column", "expected", "message"),
    [
        (pa.array(["1", "$2"]), "DT_FLOAT", r"column x: '\$2' is not a finite number"),
        (pa.array(["1", "inf"]), "DT_FLOAT", "column x: 'inf' is not a finite number"),
        (pa.array([1, 1e39]), "DT_FLOAT", r"column x: '1e\+39' is too large for a 32-bit float"),
        ([1, float("inf")], "DT_FLOAT", "column x: 'inf' is not a finite number"),
        (pa.array(["1.5"]), "DT_INT64", "column x: .*1.5"),
        (pa.array([1, None]), "DT_INT32", "column x: expected DT_INT32, got a missing value"),
        (pa.array([300]), "DT_UINT8", "column x: .*300"),
        (pa.array([1.5]), "DT_INT64", "column x: .*1.5"),
        (pa.array([[1.0], [1.0, 2.0]]), "DT_FLOAT", "column x: .*size"),
        (["a"], "DT_FLOAT", "column x: "),
        ([None], "DT_INT32", "column x: "),
    ],
)
def test_values_that_do_not_fit(column, expected: str, message: str) -> None:
    with pytest.raises(StatusError, match=message):
        to_input(column, spec(expected), "x")


def test_flat_values_of_a_record_get_the_shape_of_the_input() -> None:
    found = to_input([[1.0, 2.0, 3.0, 4.0]] * 3, spec("DT_FLOAT", 2, 2), "x")
    assert found.shape == (3, 2, 2)


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.int64, np.float64]),
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=4),
        elements=st.integers(-1000, 1000),
    )
)
def test_outputs_can_be_inputs_again(values) -> None:
    column = to_arrow("y", values)
    assert len(column) == len(values)
    assert column.to_pylist() == values.tolist()
    names = {np.float32: "DT_FLOAT", np.int64: "DT_INT64", np.float64: "DT_DOUBLE"}
    found = to_input(column, spec(names[values.dtype.type], *values.shape[1:]), "y")
    np.testing.assert_array_equal(found, values)


def test_values_of_json_lines_that_a_conversion_takes() -> None:
    assert to_input([0, True, None, "a", 2.0], spec("DT_STRING"), "x").tolist() == [
        b"0",
        b"true",
        b"",
        b"a",
        b"2",
    ]
    found = to_input([True, False, "1.5", "NA", None, 2], spec("DT_FLOAT"), "x")
    np.testing.assert_array_equal(found, np.array([1, 0, 1.5, np.nan, np.nan, 2], np.float32))
    with pytest.raises(StatusError, match=r"column x: '\$2' is not a finite number"):
        to_input(["$2", 1], spec("DT_FLOAT"), "x")
    with pytest.raises(StatusError, match="column x: "):
        to_input([["a"]], spec("DT_FLOAT", 1), "x")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_are_seconds_as_in_datasets(unit: str) -> None:
    noon = dt.datetime(2024, 1, 31, 12, tzinfo=dt.UTC)
    dates = [noon, dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)]
    for zone in ("UTC", None):
        column = pa.array(dates, pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit, zone))
        assert to_input(column, spec("DT_INT64"), "x").tolist() == [1706702400, -1]
    days = pa.array([dt.date(2024, 1, 31)])
    assert to_input(days, spec("DT_INT64"), "x").tolist() == [1706659200]


def test_rows_of_a_csv_file_whose_header_has_line_feeds(tmp_path: Path) -> None:
    parts = [tmp_path / name for name in "ab"]
    for part in parts:
        with part.open("wb") as file:
            writer = Writer(file, "csv")
            writer.add({"key": [part.name], 'a "name"\nof two\n\nlines': ["n\nm"], "y": np.ones(1)})
            writer.close()
    with (tmp_path / "joined").open("wb") as target:
        join(parts, target, "csv")
    with (tmp_path / "joined").open(newline="") as found:
        assert list(csv.reader(found)) == [
            ["key", 'a "name"\nof two\n\nlines', "y"],
            ["a", "n\nm", "1"],
            ["b", "n\nm", "1"],
        ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(4), pa.binary_view()])
def test_bytes_in_csv_are_base64(kind: pa.DataType) -> None:
    file = io.BytesIO()
    raw = b"\xff\xfe,\0"
    outputs = np.array([raw, raw], object)
    Writer(file, "csv").add({"raw": pa.array([raw, None], kind), "y_bytes": outputs})
    rows = list(csv.reader(io.StringIO(file.getvalue().decode())))
    assert rows == [["raw", "y_bytes"], ["//4sAA==", "//4sAA=="], ["", "//4sAA=="]]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), None])
def test_cells_of_csv_are_no_formulas(kind: pa.DataType | None) -> None:
    texts = ["=1+1", "+SUM(A1)", "-cmd", "@x", "\tx", "-5", "+1.5e3", "a=b", ""]
    texts[5:5] = starts = ["\n=1+1", " \t=1", "\r@x", "\uff1d1+1"]
    kept = pa.array(texts, kind) if kind is not None else pa.array(texts).dictionary_encode()
    for raw in (False, True):
        file = io.BytesIO()
        outputs = np.array([text.encode() for text in texts], object)
        columns = {"key": texts, "=k": kept, "out": outputs, "y": -np.ones(len(texts))}
        Writer(file, "csv", raw=raw).add(columns)
        head, *rows = csv.reader(io.StringIO(file.getvalue().decode(), newline=""))
        signs = 5 + len(starts)
        quoted = texts if raw else [f"'{text}" for text in texts[:signs]] + texts[signs:]
        assert [row[:3] for row in rows] == [[each] * 3 for each in quoted]
        assert {row[3] for row in rows} == {"-1"}
        assert head == ["key", "=k" if raw else "'=k", "out", "y"]


def test_nested_values_of_records_are_json(tmp_path: Path) -> None:
    path = tmp_path / "out.tfrecord"
    pairs = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    with path.open("wb") as file:
        Writer(file, "tfrecord").add({"pairs": pairs, "gaps": pa.array([[b"a", None]])})
    (record,) = read_records(path)
    assert decode_example(record) == {"pairs": [b'[["a", 1]]'], "gaps": [b'["a", null]']}
