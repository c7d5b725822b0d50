"""Rates and slots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.serving.auth.limits import ConcurrencyLimit, Throttle, take
from timonel.serving.settings.auth import Rate, parse_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100", Rate(100, 100)),
        ("0.5/s", Rate(0.5, 1)),
        ("600/min", Rate(10, 10)),
        ("36/h:5", Rate(0.01, 5)),
        ("100/s:20", Rate(100, 20)),
    ],
)
def test_rates_are_read(text, rate):
    assert parse_rate(text) == rate
    assert parse_rate(str(rate)) == rate


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1/d", "5:0", "5:", "nan", "1e3"])
def test_what_is_no_rate(text):
    with pytest.raises(SpecError, match="expected a rate such as"):
        parse_rate(text)


def test_a_bucket_gives_its_burst_then_the_rate():
    rate, bucket = Rate(2.0, 3), None
    waits = []
    for now in (0, 0, 0, 0, 0.25, 0.5, 0.5, 100, 100, 100, 100):
        bucket, wait = take(rate, bucket, now)
        waits.append(wait)
    assert waits == [0, 0, 0, 0.5, 0.25, 0, 0.5, 0, 0, 0, 0.5]


@settings(max_examples=40)
@given(
    st.floats(0.1, 1000),
    st.integers(1, 50),
    st.lists(st.floats(0, 10), max_size=40).map(sorted),
)
def test_never_more_than_burst_and_rate(per_s, burst, times):
    rate, bucket, granted = Rate(per_s, burst), None, 0
    for now in times:
        bucket, wait = take(rate, bucket, now)
        granted += wait == 0
        assert 0 <= bucket.tokens <= burst
        if wait:
            assert take(rate, bucket, now + wait + 1e-6)[1] == 0
    if times:
        assert granted <= burst + per_s * (times[-1] - times[0]) + 1e-6


def test_names_have_buckets_of_their_own_and_few_are_kept():
    throttle = Throttle(Rate(1, 1), most=2)
    assert throttle.take("a", 0) == 0
    assert throttle.take("b", 0) == 0
    assert throttle.take("a", 0) == 1
    assert throttle.take("c", 0) == 0  # b, used longest ago, makes room
    assert throttle.take("a", 0) == 1
    assert Throttle(None).take("a", 0) == 0


def test_slots():
    slots = ConcurrencyLimit(2)
    assert [slots.take() for _ in range(3)] == [True, True, False]
    slots.give()
    assert slots.take()
    assert all(ConcurrencyLimit(None).take() for _ in range(5))
