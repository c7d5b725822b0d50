"""Predictive mode: the pattern, and what it is worth."""

from __future__ import annotations

import pytest

from timonel.endpoints.autoscaling.forecast import SLOTS, Pattern
from timonel.endpoints.autoscaling.policy import Forecast, ScalingPolicy
from timonel.endpoints.autoscaling.simulation import ServiceModel, simulate
from timonel.endpoints.autoscaling.traces import diurnal

DAY = 86400.0
MINUTE = 60.0
FORECAST = Forecast(lead_s=0)


def learned(*days: float, start_hour: float = 8, hours: float = 2) -> Pattern:
    """Return the pattern of days that have a constant load for some hours."""
    pattern = Pattern()
    for day, load in enumerate(days):
        for slot in range(SLOTS):
            hour = slot / 60
            value = load if start_hour <= hour < start_hour + hours else 0.0
            pattern = pattern.observe(day * DAY + slot * MINUTE, value, FORECAST)
    return pattern


def test_nothing_is_expected_before_the_first_period() -> None:
    assert Pattern().expected(0, FORECAST) is None
    assert Pattern().replicas(0, FORECAST, 1.0) == 0


def test_the_next_day_is_like_the_last() -> None:
    pattern = learned(40)
    assert pattern.expected(DAY + 9 * 3600, FORECAST) == 40
    assert pattern.expected(DAY + 5 * 3600, FORECAST) == 0
    assert pattern.replicas(DAY + 9 * 3600, FORECAST, 7) == 5


def test_the_lead_time_comes_first() -> None:
    pattern = learned(40)
    ahead = Forecast(lead_s=120)
    before = DAY + 8 * 3600 - 90
    assert pattern.expected(before, FORECAST) == 0
    assert pattern.expected(before, ahead) == 40


def test_the_load_between_two_slots_is_interpolated() -> None:
    loads = [0.0] * 8 * 60 + [60.0 * (slot + 0.5) for slot in range(16 * 60)]
    pattern = Pattern(tuple(loads))
    for minutes in (10.0, 10.25, 10.5, 11.0):
        now = DAY + 8 * 3600 + minutes * MINUTE
        assert pattern.expected(now, FORECAST) == pytest.approx(minutes * 60)


def test_newer_days_count_more() -> None:
    assert learned(40, 40, 80).expected(3 * DAY + 9 * 3600, FORECAST) == 60


def test_any_load_is_worth_one_replica() -> None:
    pattern = learned(0.1)
    assert pattern.replicas(DAY + 9 * 3600, FORECAST, 7) == 1
    assert pattern.replicas(DAY + 5 * 3600, FORECAST, 7) == 0


def test_a_day_without_load_soon_expects_none() -> None:
    pattern = learned(40, 40)
    for slot in range(9 * 60):
        pattern = pattern.observe(2 * DAY + slot * MINUTE, 0.0, FORECAST)
    assert pattern.expected(2 * DAY + 9 * 3600, FORECAST) == pytest.approx(0, abs=1)


def test_requests_that_waited_are_no_load() -> None:
    pattern = learned(40)
    loads = list(pattern.loads)
    loads[8 * 60], loads[8 * 60 + 1] = 900.0, 800.0
    queued = Pattern(tuple(loads), pattern.slot, pattern.total, pattern.count)
    for slot in range(8 * 60 - 3, 8 * 60 + 5):
        expected = queued.expected(DAY + slot * MINUTE, FORECAST)
        assert expected is not None
        assert expected <= 40


@pytest.mark.slow
@pytest.mark.parametrize("max_replicas", [0, 80])
def test_a_diurnal_load_is_served_better_for_fewer_replica_hours(max_replicas: int) -> None:
    trace, model = diurnal(high=500, days=2), ServiceModel(startup_s=60)
    fields = {"target": 5, "max_replicas": max_replicas}
    plain = simulate(trace, ScalingPolicy(**fields), model)
    ahead = simulate(trace, ScalingPolicy(**fields, forecast={"lead_s": 60}), model)
    assert ahead.over_target_s < 0.6 * plain.over_target_s  # the first day is alike
    assert ahead.replica_hours < plain.replica_hours


@pytest.mark.slow
def test_a_forecast_avoids_cold_starts() -> None:
    trace, model = diurnal(high=500, days=2, base=0), ServiceModel(startup_s=60)
    policy = ScalingPolicy(target=5, max_replicas=80)
    ahead = ScalingPolicy(target=5, max_replicas=80, forecast={"lead_s": 300})
    cold = [simulate(trace, each, model).cold_starts for each in (policy, ahead)]
    assert cold == [2, 1]  # the first morning is unknown
