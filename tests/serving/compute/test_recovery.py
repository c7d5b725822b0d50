from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.compute.recovery import Patience, after_death


def test_at_once_then_later_then_never():
    deaths = ()
    delays = []
    for second in range(5):
        decision = after_death(Patience(5, 60), deaths, float(second))
        deaths = decision.deaths
        delays.append(decision.delay_s)
    assert delays == [0.0, 0.5, 1.0, 2.0, None]


def test_deaths_are_forgotten():
    decision = after_death(Patience(2, 60), (0.0,), 60.0)
    assert decision.deaths == (60.0,)
    assert decision.delay_s == 0.0


@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(1, 9), st.floats(0.1, 1e5))
def test_it_is_given_up_only_after_as_many_deaths_within_the_window(times, most, window_s):
    deaths = ()
    for now in sorted(times):
        decision = after_death(Patience(most, window_s), deaths, now)
        within = [at for at in sorted(times) if at <= now and now - at < window_s]
        assert (decision.delay_s is None) <= (len(within) >= most)
        assert decision.delay_s is None or 0 <= decision.delay_s <= 30
        deaths = decision.deaths
