from __future__ import annotations

import re

import numpy as np
import pytest

from timonel.models.runtime_choice import Measurement
from timonel.serving.selection.benchmark import decide, difference

INFINITE = float("inf")


def texts(*values):
    return np.array([value.encode() for value in values], dtype=object)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([[1.0, 2.0]], [[1.0, 2.0]], 0),
        ([[1.0, 2.002]], [[1.0, 2.0]], 1e-3),
        # Small beside the largest number of its row, which is what rounding is relative to.
        ([[1e-9, 2.0]], [[0.0, 2.0]], 5e-10),
        # Rows are apart: the second one's scale is its own.
        ([[100.0], [0.02]], [[100.0], [0.01]], 1),
        ([np.nan, 1.0], [np.nan, 1.0], 0),
        ([np.nan, 1.0], [0.0, 1.0], INFINITE),
        ([np.inf, 1.0], [np.inf, 1.0], 0),
        ([np.inf, 1.0], [-np.inf, 1.0], INFINITE),
        ([1.0], [0.0], INFINITE),
        ([], [], 0),
        (0.5, 0.5, 0),
    ],
)
def test_differences_of_numbers(ours, theirs, expected):
    found = difference(np.asarray(ours, np.float64), np.asarray(theirs, np.float64))
    # Beside zeros, whatever is none is as far away as can be.
    assert min(found, 1e300) == pytest.approx(min(expected, 1e300), rel=1e-6)


def test_what_is_no_number_must_be_equal():
    assert difference(texts("a", "b"), texts("a", "b")) == 0
    assert difference(texts("a", "b"), texts("a", "c")) == INFINITE
    assert difference(np.array([1, 2]), np.array([1, 3])) == INFINITE


def test_other_shapes_and_types_are_not_comparable():
    assert difference(np.zeros((2, 1)), np.zeros(2)) == INFINITE
    assert difference(np.zeros(2, np.float32), np.zeros(2)) == INFINITE


def times(batch=1, callers=1, signature="serving_default", **milliseconds):
    return [
        Measurement(
            runtime=runtime, signature=signature, batch=batch, callers=callers, milliseconds=value
        )
        for runtime, value in milliseconds.items()
    ]


def decided(measurements, litert=(0.0,), frozen=(0.0,)):
    """Give each way the differences of its answers, or why there is no such way."""
    found = {"litert": litert, "frozen": frozen}
    impossible = {way: each for way, each in found.items() if isinstance(each, str)}
    differences = {way: each for way, each in found.items() if way not in impossible}
    return decide(differences, impossible, measurements)


BOTH_FASTER = [
    *times(tensorflow=4, litert=2, frozen=3),
    *times(batch=8, tensorflow=9, litert=3, frozen=6),
]


def test_litert_where_it_agrees_and_is_faster_at_every_size():
    assert decided(BOTH_FASTER) == ("litert", "LiteRT is 2.0 to 3.0 times as fast")


def test_the_faster_one_of_two():
    measurements = times(tensorflow=4, litert=2, frozen=1)
    assert decided(measurements)[0] == "frozen"


def test_no_variables_where_litert_cannot_or_must_not():
    expected = "TensorFlow without variables is 1.3 to 1.5 times as fast"
    assert decided(BOTH_FASTER, litert="LiteRT has no DecodeImage") == (
        "frozen",
        f"{expected}; LiteRT has no DecodeImage",
    )
    choice, reason = decided(BOTH_FASTER, litert=(0.0, 2e-4))
    assert choice == "frozen"
    assert reason == f"{expected}; answers of LiteRT differ by 2.0e-04 (at most 0.0001)"


@pytest.mark.parametrize(
    ("differences", "measurements", "reason"),
    [
        ([], times(tensorflow=2, litert=1), "no answers to compare"),
        ([2e-4], times(tensorflow=2, litert=1), r"answers of LiteRT differ by 2.0e-04"),
        ([INFINITE], times(tensorflow=2, litert=1), "differ by inf"),
        ([float("nan")], times(tensorflow=2, litert=1), "differ by nan"),
        ([0.0], [], "nothing was measured"),
        ([0.0], times(tensorflow=2, litert=1.95), "LiteRT is 1.03 to 1.03 times as fast"),
        (
            [0.0],
            [*times(tensorflow=2, litert=1), *times(batch=32, tensorflow=2, litert=4)],
            "LiteRT is 0.50 to 2.00 times as fast",
        ),
    ],
)
def test_else_tensorflow(differences, measurements, reason):
    choice, told = decided(measurements, litert=differences, frozen="it has tables")
    assert choice == "tensorflow"
    assert re.search(reason, told)
    assert "it has tables" in told


def test_a_reason_for_both_is_told_once():
    assert decided([], litert="none", frozen="none") == ("tensorflow", "none")
