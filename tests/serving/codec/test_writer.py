from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from timonel.serving.asgi import encode_error
from timonel.serving.codec.writer import CHUNK, array_text, encode
from timonel.serving.inference.classification import paired
from timonel.serving.protocols.tfs_rest.examples import encode_classes, encode_values
from timonel.serving.status import StatusError


def strings(*values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def rows(**outputs):
    return json.loads(encode(outputs, by_row=True))["predictions"]


def columns(**outputs):
    return json.loads(encode(outputs, by_row=False))["outputs"]


def test_one_output_loses_its_name():
    scores = np.array([[0.5, 1.0]], np.float32)
    assert rows(scores=scores) == [[0.5, 1.0]]
    assert columns(scores=scores) == [[0.5, 1.0]]


def test_several_outputs_are_rows_or_columns():
    outputs = {"a": np.array([1, 2]), "b": np.array([[1.5], [2.5]])}
    assert rows(**outputs) == [{"a": 1, "b": [1.5]}, {"a": 2, "b": [2.5]}]
    assert columns(**outputs) == {"a": [1, 2], "b": [[1.5], [2.5]]}


def test_columns_may_be_scalars_of_different_sizes():
    assert columns(a=np.array(3, np.int32), b=np.array([1.0, 2.0])) == {"a": 3, "b": [1.0, 2.0]}
    assert columns(a=np.array(True)) is True
    assert columns(a=np.array(b"text", dtype=object)) == "text"


def test_an_empty_batch_is_an_empty_list():
    assert rows(a=np.zeros((0, 3))) == []
    assert rows(a=np.zeros((0,)), b=np.zeros((0, 2))) == []
    assert rows(a=np.zeros((2, 0))) == [[], []]


def test_floats_are_short_and_keep_their_point():
    text = encode({"x": np.array([0.1, 2, 1 / 3], np.float32)}, by_row=True)
    assert text == b'{"predictions":[0.1,2.0,0.33333334]}'
    text = encode({"x": np.array([0.1, 2, np.nan], np.float32)}, by_row=True)
    assert text == b'{"predictions":[0.1,2.0,NaN]}'


def test_infinities_are_bare_tokens():
    values = np.array([[math.inf, -math.inf, math.nan, 1e-7]])
    assert encode({"x": values}, by_row=False) == b'{"outputs":[[Infinity,-Infinity,NaN,1e-07]]}'


def test_strings_and_bytes():
    assert rows(label=strings(b"a", "é".encode())) == ["a", "é"]
    assert rows(image_bytes=strings(b"a")) == [{"b64": "YQ=="}]
    nan = np.array([np.nan], np.float32)
    assert b'{"label":"\xc3\xa9","x":NaN}' in encode(
        {"label": strings("é".encode()), "x": nan}, by_row=True
    )


def test_a_string_that_is_no_text_is_base64_too():
    assert rows(label=strings(b"\xff")) == [{"b64": base64.b64encode(b"\xff").decode()}]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"a": np.array(1.0)}, "Tensor name: a has no shape information "),
        (
            {"a": np.zeros(2), "b": np.zeros(3)},
            "Tensor name: b has inconsistent batch size: 3 expecting: 2",
        ),
        (
            {"a": np.zeros(2, np.float16)},
            "Failed to write JSON value for tensor type: DT_HALF",
        ),
        (
            {"a": np.zeros(2, np.complex64)},
            "Failed to write JSON value for tensor type: DT_COMPLEX64",
        ),
    ],
)
def test_refusals(outputs, message):
    with pytest.raises(StatusError) as caught:
        encode(outputs, by_row=True)
    assert caught.value.message == message


def test_an_error_is_an_object_whatever_its_text():
    assert json.loads(encode_error('a "quoted" \ud800 text')) == {
        "error": 'a "quoted" \\ud800 text'
    }


def test_no_outputs_are_an_error():
    with pytest.raises(StatusError, match="Cannot convert empty tensor map to JSON"):
        encode({}, by_row=True)


def test_classes():
    labels = np.array([[b"a", b"b"], [b"\xff", b"d"]], object)
    classes = paired(labels, np.array([[0.2, np.nan], [1, 0.5]], np.float32))
    assert (
        encode_classes(classes)
        == b'{"results":[[["a",0.2],["b",NaN]],[[{"b64":"/w=="},1.0],["d",0.5]]]}'
    )
    finite = paired(None, np.array([[0.2]], np.float32))
    assert encode_classes(finite) == b'{"results":[[["",0.2]]]}'
    with pytest.raises(StatusError, match="Cannot convert empty ClassificationResults to JSON"):
        encode_classes(paired(None, np.zeros((0, 2), np.float32)))


def test_values():
    assert encode_values(np.array([0.2, 3], np.float32)) == b'{"results":[0.2,3.0]}'
    with pytest.raises(StatusError, match="Cannot convert empty RegressionResults to JSON"):
        encode_values(np.zeros(0, np.float32))


numeric = st.sampled_from(
    [np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64, np.bool_]
)


@given(
    numeric.flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0))
    )
)
def test_numbers_come_back_as_they_were(array):
    back = np.array(rows(x=array), dtype=array.dtype).reshape(array.shape)
    np.testing.assert_array_equal(back, array)


@given(hnp.arrays(np.float32, st.integers(1, 5)))
def test_float32_takes_no_more_digits_than_it_needs(array):
    text = encode({"x": array}, by_row=True).decode()
    inside = text.removeprefix('{"predictions":[').removesuffix("]}").split(",")
    for written, value in zip(inside, array, strict=True):
        digits = written.lower().partition("e")[0].replace(".", "").strip("-0")
        assert len(digits) <= 9 or abs(value) > 1e9


@pytest.mark.parametrize("name", ["s", "s_bytes"])
@pytest.mark.parametrize("shape", [(CHUNK + 1,), (3, CHUNK + 1), (2, 3, CHUNK // 2)])
def test_many_strings_are_written_in_pieces(shape, name):
    array = np.full(shape, "é".encode(), dtype=object)
    array.reshape(-1)[-1] = b"\xff"
    pieces = list(array_text(name, array))
    assert len(pieces) > 3
    assert max(map(len, pieces)) < 20 * CHUNK
    found = json.loads(b"".join(pieces))
    values = np.array(found, dtype=object)
    assert values.shape == shape
    text = {"b64": "w6k="} if name == "s_bytes" else "é"
    assert values.reshape(-1)[0] == text
    assert values.reshape(-1)[-1] == {"b64": "/w=="}


@pytest.mark.slow
@pytest.mark.parametrize("special", [None, np.nan, np.inf])
@pytest.mark.parametrize(
    "shape", [(CHUNK + 1,), (3, CHUNK + 1), (CHUNK, 2, 1), (1, 1, 2 * CHUNK), (2, 3, CHUNK // 2)]
)
def test_large_arrays_are_written_in_pieces(shape, special):
    array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    if special is not None:
        array.reshape(-1)[CHUNK // 3] = special
    for by_row, key in ((True, "predictions"), (False, "outputs")):
        found = json.loads(encode({"y": array}, by_row=by_row))[key]
        np.testing.assert_array_equal(np.array(found, np.float32), array)
    both = {"y": array, "n": np.arange(len(array))}
    columns = json.loads(encode(both, by_row=False))["outputs"]
    np.testing.assert_array_equal(np.array(columns["y"], np.float32), array)
    assert columns["n"] == list(range(len(array)))
    rows = json.loads(encode(both, by_row=True))["predictions"]
    assert [row["n"] for row in rows] == list(range(len(array)))
    np.testing.assert_array_equal(np.array([row["y"] for row in rows], np.float32), array)
