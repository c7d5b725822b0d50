"""Sliding windows.

The first tables are those of knative/serving, pkg/autoscaler/aggregation/bucketing_test.go, since
release 0.17, where a window that has just begun is averaged over the buckets that it has.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.endpoints.autoscaling.windows import Window


def filled(*values: float, size: int = 5) -> Window:
    window = Window(size)
    for second, value in enumerate(values):
        window = window.record(second, value)
    return window


@pytest.mark.parametrize(
    ("now", "average"),
    [
        (4, 15 / 5),
        (3.6, 15 / 5),  # the clock lags behind
        (6, (15 - 1 - 2) / (5 - 2)),  # a short hole
        (9, 0.0),  # a long hole
    ],
)
def test_window_average(now: float, average: float) -> None:
    assert filled(1, 2, 3, 4, 5).average(now) == average


def test_a_window_that_has_just_begun_is_averaged_over_what_it_has() -> None:
    assert filled(1).average(0) == 1


def test_averages_are_rounded_down_to_millionths() -> None:
    assert filled(0, 0, 2).average(2) == 0.666666


def test_writing_with_holes_counts_them_as_zero() -> None:
    assert filled(1, 2, 3, 4, 5).record(6, 91).average(6) == pytest.approx((3 + 4 + 5 + 91) / 5)


def test_a_long_hole_begins_a_new_window() -> None:
    window = filled(1, 2, 3, 4, 5).record(30, 1984)
    assert window.average(30) == 1984
    window = window.record(27, 4)  # earlier, but within the window
    assert window.average(30) == pytest.approx((4 + 1984) / 4)
    window = window.record(31, 5).record(28, 10)
    assert window.average(31) == pytest.approx((4 + 10 + 1984 + 5) / 5)
    assert window.record(26, 10) == window  # too early
    assert window.record(27, 10) != window


def test_descending_records() -> None:
    window = Window(5)
    for second in range(8, -1, -1):
        window = window.record(second, 5)
    assert window.average(5) == 5


def test_resizing_keeps_the_newest_buckets() -> None:
    window = filled(1, 2, 3, 4, 5, 6)
    assert window.average(5) == 4
    larger = window.resized(10).record(6, 7)
    assert larger.average(6) == pytest.approx(27 / 6, abs=1e-6)
    assert larger.resized(4).average(6) == pytest.approx((4 + 5 + 6 + 7) / 4)
    assert larger.resized(10) is larger


def test_incomplete_buckets_count_as_one() -> None:
    window = Window.of(5, bucket_s=3)
    for second, value in enumerate((10, 2, 3, 4, 5, 6, 7)):
        window = window.record(second, value)
    assert window.sums == (4 + 5 + 6, 7)


def test_weighted_average_prefers_new_values() -> None:
    """The exponent 0.2 is the smallest, for windows of many buckets."""
    window = filled(10, 10, 5, 5, size=60)
    weights = [0.2 * 0.8**age for age in range(4)]
    assert window.average(3, "weighted-exponential") == pytest.approx(
        sum(weight * value for weight, value in zip(weights, (5, 5, 10, 10), strict=True))
    )


def test_weights_of_late_buckets_are_lower() -> None:
    window = filled(10, size=60)
    assert window.average(2, "weighted-exponential") == pytest.approx(10 * 0.2 * 0.8**2)


def test_without_data_there_is_no_average() -> None:
    assert Window(5).average(0) is None
    assert filled(1).average(5) == 0
    assert filled(1).average(6) is None


@given(
    values=st.lists(st.floats(0, 1e6), min_size=1, max_size=100),
    size=st.integers(1, 20),
    late=st.integers(0, 30),
)
def test_an_average_is_within_the_values(values: list[float], size: int, late: int) -> None:
    average = filled(*values, size=size).average(len(values) - 1 + late)
    if late > size:
        assert average is None
    else:
        assert average is not None
        assert 0 <= average <= max(values)
