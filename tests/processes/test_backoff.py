from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from timonel.processes.backoff import CrashBackoff, backoff_s

PAUSES = st.lists(st.floats(0, 1000), min_size=1, max_size=30)


def test_delays_double_up_to_a_maximum():
    delays = [backoff_s(restart, 0.5, 10.0) for restart in range(1, 9)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@given(st.integers(1, 10**9))
def test_a_delay_has_bounds(restart):
    assert 0 <= backoff_s(restart, 0.5, 10.0) <= 10.0


@given(PAUSES)
def test_crashes_within_the_window_count(pauses):
    times = list(accumulate(pauses))
    crashes = CrashBackoff(window_s=300, first_s=0.5, max_s=10)
    for number, now in enumerate(times, 1):
        delay_s = crashes.add(now)
        within = sum(now - at < 300 for at in times[:number])
        assert crashes.count == within
        assert delay_s == backoff_s(within, 0.5, 10)


@given(PAUSES, st.floats(300, 1e6))
def test_a_crash_after_a_quiet_window_is_a_first_one(pauses, quiet_s):
    crashes = CrashBackoff(window_s=300, first_s=0.5, max_s=10)
    *_, last = accumulate(pauses)
    for now in accumulate(pauses):
        crashes.add(now)
    assert crashes.add(last + 1 + quiet_s) == 0
    assert crashes.count == 1
