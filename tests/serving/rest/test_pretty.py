from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from timonel.serving.classification import Classes
from timonel.serving.dialect import TENSORFLOW_SERVING, TIMONEL
from timonel.serving.rest.decimals import decimal_texts
from timonel.serving.rest.encoding import (
    encode,
    encode_classes,
    encode_error,
    encode_metadata,
    encode_status,
    encode_values,
)
from timonel.serving.status import StatusError


def objects(values):
    array = np.empty(np.shape(values), dtype=object)
    array[...] = values
    return array


def text(outputs, *, by_row):
    return encode(outputs, by_row=by_row, dialect=TENSORFLOW_SERVING).decode()


ROWS = [
    ({"y": np.array([2.5, 3, 4.5], np.float32)}, ['    "predictions": [2.5, 3.0, 4.5', "    ]"]),
    (
        {"y": np.array([[1, 2], [3, 4]], np.int32)},
        ['    "predictions": [[1, 2], [3, 4]', "    ]"],
    ),
    ({"y": np.zeros((0, 3), np.float32)}, ['    "predictions": []']),
    ({"y": np.zeros((0, 3), np.complex64)}, ['    "predictions": []']),
    ({"y": np.zeros((2, 0), np.float32)}, ['    "predictions": [[], []', "    ]"]),
    (
        {"a": np.array([1, 2]), "b": np.array([[True], [False]])},
        [
            '    "predictions": [',
            "        {",
            '            "a": 1,',
            '            "b": [true]',
            "        },",
            "        {",
            '            "a": 2,',
            '            "b": [false]',
            "        }",
            "    ]",
        ],
    ),
    (
        {"x_bytes": objects([b"a", b"b"])},
        [
            '    "predictions": [{',
            '            "b64": "YQ=="',
            "        }, {",
            '            "b64": "Yg=="',
            "        }",
            "    ]",
        ],
    ),
    (
        {"n": np.array([1]), "x_bytes": objects([[b"a"]])},
        [
            '    "predictions": [',
            "        {",
            '            "n": 1,',
            '            "x_bytes": [{',
            '                    "b64": "YQ=="',
            "                }]",
            "        }",
            "    ]",
        ],
    ),
]
COLUMNS = [
    ({"y": np.array(3, np.uint8)}, ['    "outputs": 3']),
    (
        {"y": np.array([[1.0]])},
        ['    "outputs": [', "        [", "            1.0", "        ]", "    ]"],
    ),
    ({"y": np.zeros((0,))}, ['    "outputs": []']),
    (
        {"a": objects('"é"\n'.encode()), "b_bytes": objects(b"a")},
        [
            '    "outputs": {',
            '        "a": "\\"é\\"\\n",',
            '        "b_bytes": {',
            '            "b64": "YQ=="',
            "        }",
            "    }",
        ],
    ),
]


@pytest.mark.parametrize(
    ("outputs", "by_row", "lines"),
    [(*case[:1], True, case[1]) for case in ROWS]
    + [(*case[:1], False, case[1]) for case in COLUMNS],
)
def test_answers_are_laid_out_as_by_tensorflow_serving(outputs, by_row, lines):
    assert text(outputs, by_row=by_row).split("\n") == ["{", *lines, "}"]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (0.2, np.float32, "0.2"),
        (1 / 3, np.float32, "0.333333343"),
        (1 / 3, np.float64, "0.33333333333333331"),
        (9e6, np.float32, "9e+06"),
        (3e-5, np.float32, "3e-05"),
        (16777216, np.float32, "16777216.0"),
        (123456, np.float64, "123456.0"),
        (1234567, np.float64, "1234567.0"),
        (1e22, np.float64, "1e+22"),
        (-0.0, np.float32, "-0.0"),
        (5e-324, np.float64, "4.94066e-324"),
        (np.nan, np.float32, "NaN"),
        (-np.inf, np.float64, "-Infinity"),
    ],
)
def test_floats_are_written_as_by_tensorflow_serving(value, dtype, expected):
    assert decimal_texts(np.array([value, 1.5], dtype)) == [expected, "1.5"]


@given(
    st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: hnp.arrays(
            dtype,
            st.integers(1, 4),
            elements=st.one_of(
                st.floats(width=32, allow_nan=False, allow_infinity=False),
                st.integers(-(10**7), 10**7).map(lambda n: float(np.float32(n / 1000))),
            ),
        )
    )
)
def test_six_digits_are_written_where_they_are_enough(array):
    digits = 9 if array.dtype == np.float32 else 17
    for value, written in zip(array, decimal_texts(array), strict=True):
        expected = f"{float(value):g}"
        if array.dtype.type(float(expected)) != value:
            expected = f"{float(value):.{digits}g}"
        assert written == (expected if set(expected) & set(".e") else f"{expected}.0")


@given(hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, min_side=0)), st.booleans())
def test_both_dialects_say_the_same(array, by_row):
    outputs = {"y": array, "z": np.arange(array.shape[0])}
    plain = json.loads(encode(outputs, by_row=by_row, dialect=TIMONEL))
    assert repr(json.loads(text(outputs, by_row=by_row))) == repr(plain)


def test_bytes_that_are_no_utf8_are_written_as_they_are():
    outputs = {"label": objects([b"\xff\xc3\xa9"])}
    assert b'["\xff\xc3\xa9"' in encode(outputs, by_row=True, dialect=TENSORFLOW_SERVING)


def test_no_outputs_are_an_error():
    with pytest.raises(StatusError, match="Cannot convert empty tensor map to JSON"):
        encode({}, by_row=True)


CLASSES = Classes(
    objects([[b"a", b"b"], [b"c", b"d"]]), np.array([[0.2, np.nan], [1, 0.5]], np.float32)
)


def test_classes():
    assert encode_classes(CLASSES, TENSORFLOW_SERVING).decode() == (
        '{\n    "results": [[["a", 0.2], ["b", NaN]], [["c", 1.0], ["d", 0.5]]\n    ]\n}'
    )
    assert encode_classes(CLASSES, TIMONEL) == (
        b'{"results":[[["a",0.2],["b",NaN]],[["c",1.0],["d",0.5]]]}'
    )
    finite = Classes(None, np.array([[0.2]], np.float32))
    assert encode_classes(finite, TIMONEL) == b'{"results":[[["",0.2]]]}'
    with pytest.raises(StatusError, match="Cannot convert empty ClassificationResults to JSON"):
        encode_classes(Classes(None, np.zeros((0, 2), np.float32)))


def test_values():
    values = np.array([0.2, 3], np.float32)
    assert encode_values(values, TENSORFLOW_SERVING) == b'{\n    "results": [0.2, 3.0]\n}'
    assert encode_values(values, TIMONEL) == b'{"results":[0.2,3.0]}'
    with pytest.raises(StatusError, match="Cannot convert empty RegressionResults to JSON"):
        encode_values(np.zeros(0, np.float32))


def test_errors():
    assert encode_error('a "b"\n', TENSORFLOW_SERVING) == b'{\n    "error": "a \\"b\\"\\n"\n}'
    assert encode_error("\ud800\udcff", TENSORFLOW_SERVING) == b'{\n    "error": "??"\n}'


def test_status_and_metadata_are_printed_as_protos():
    status = {"model_version_status": [{"version": "1", "status": {"error_message": "<\u00e9>"}}]}
    assert encode_status(status, TENSORFLOW_SERVING).decode() == (
        '{\n "model_version_status": [\n  {\n   "version": "1",\n   "status": {\n'
        '    "error_message": "\\u003cé\\u003e"\n   }\n  }\n ]\n}\n'
    )
    view = {
        "model_spec": {"name": "m"},
        "metadata": {"signature_def": {"signature_def": {"s": {"defaults": {}, "dim": []}}}},
    }
    written = encode_metadata(view, TENSORFLOW_SERVING).decode()
    assert written == (
        '{\n"model_spec":{\n "name": "m"\n}\n,\n"metadata": {"signature_def": {\n'
        ' "signature_def": {\n  "s": {\n   "defaults": {},\n   "dim": []\n  }\n }\n}\n}\n}\n'
    )
    assert json.loads(written) == json.loads(encode_metadata(view)) == view
