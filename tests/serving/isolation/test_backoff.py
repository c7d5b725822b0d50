from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.isolation.backoff import MAX_DELAY_S, WINDOW_S, after_crash


def delays(times):
    crashes, found = (), []
    for now in times:
        restart = after_crash(crashes, now)
        crashes = restart.crashes
        found.append(restart.delay_s)
    return found


def test_delays_double_up_to_a_maximum():
    assert delays(map(float, range(8))) == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_old_crashes_do_not_count():
    assert delays([0.0, 1.0, 1.0 + WINDOW_S]) == [0.0, 0.5, 0.0]


@given(st.lists(st.floats(0, 1e6), max_size=200))
def test_every_crash_is_followed_by_a_restart(times):
    assert all(0 <= delay <= MAX_DELAY_S for delay in delays(sorted(times)))
