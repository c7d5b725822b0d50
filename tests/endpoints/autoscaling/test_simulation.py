"""Simulations: conservation of requests, queues, costs, speed."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.endpoints.autoscaling.policy import ScalingPolicy
from timonel.endpoints.autoscaling.simulation import ServiceModel, simulate
from timonel.endpoints.autoscaling.traces import Trace, diurnal, on_off, spike
from timonel.errors import SpecError

FIXED = ScalingPolicy(min_replicas=2, max_replicas=2, initial_replicas=2, target=1)


def clients(*levels: tuple[float, int]) -> Trace:
    return Trace(np.concatenate([np.full(n, level) for level, n in levels]), "concurrency")


def test_enough_replicas_serve_at_once() -> None:
    result = simulate(clients((2, 60)), FIXED, ServiceModel(service_s=0.5))
    assert result.over_target_s == 0
    assert result.latency_s(0.99) == pytest.approx(0.5)
    assert result.replica_hours == pytest.approx(2 / 60)
    assert result.cold_starts == 0
    assert result.arrivals.sum() == pytest.approx(2 * 60 / 0.5, rel=0.02)


def test_too_few_replicas_let_clients_wait() -> None:
    """Eight clients share two replicas: each request waits for three others."""
    result = simulate(clients((8, 600)), FIXED, ServiceModel(service_s=0.5))
    assert result.over_target_s == 600
    assert result.latency_s(0.5) == pytest.approx(4 * 0.5, rel=0.05)


def test_a_queue_grows_with_open_arrivals() -> None:
    """20 arrive per second, 4 are served: after 100 s, 1600 wait."""
    trace = Trace(np.full(100, 20.0), "rps")
    result = simulate(trace, FIXED, ServiceModel(service_s=0.5))
    assert result.unserved == pytest.approx(1600, rel=0.1)
    assert result.summary()["unserved"] == round(result.unserved)


def test_replicas_start_after_their_time() -> None:
    policy = ScalingPolicy(target=1, target_burst_capacity=0)
    result = simulate(spike(), policy, ServiceModel(startup_s=10))
    first = int(np.argmax(result.requested > 10))
    assert 300 < first <= 304
    assert result.ready[first + 9] < 10 <= result.ready[first + 10]
    assert result.latencies_s[310] > 1
    assert result.latencies_s[330] == pytest.approx(0.1)
    assert result.summary()["panics"] == 1


def test_the_shortest_panic_window_still_panics() -> None:
    """A window of one bucket would be empty at each decision."""
    policy = ScalingPolicy(target=1, panic_window_percent=1)
    result = simulate(spike(), policy, ServiceModel(startup_s=10))
    assert result.over_target_s <= 13
    assert result.summary()["panics"] == 1


def test_cold_starts_are_counted() -> None:
    policy = ScalingPolicy(target=10, max_replicas=20, target_burst_capacity=0)
    result = simulate(on_off(repeats=5), policy, ServiceModel(startup_s=20))
    assert result.cold_starts == 4  # the first replica was ready
    assert result.ready.min() == 0
    assert result.latency_s(1.0) == pytest.approx(20, abs=3)
    assert result.unserved == 0
    from_zero = ScalingPolicy(target=10, max_replicas=20, initial_replicas=0)
    assert simulate(on_off(repeats=1), from_zero, ServiceModel()).cold_starts == 1


def test_hpa_follows_cpu() -> None:
    policy = ScalingPolicy(metric="cpu", target=50, min_replicas=1, max_replicas=50)
    trace = clients((1, 300), (20, 900), (1, 1200))
    result = simulate(trace, policy, ServiceModel(concurrency=2))
    assert result.ready[1100] == pytest.approx(20, abs=2)  # 20 clients at half of two
    assert result.requested[-1] == 1
    assert result.over_target_s < 120  # doubled every 15 s


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (ScalingPolicy(metric="memory"), "memory cannot be simulated"),
        (ScalingPolicy(metric="cpu"), "state the concurrency"),
        (ScalingPolicy(target=0.01), "set max_replicas"),
    ],
)
def test_policies_that_cannot_be_simulated(policy: ScalingPolicy, line: str) -> None:
    with pytest.raises(SpecError, match=line):
        simulate(Trace(np.full(60, 1e6), "rps"), policy, ServiceModel())


@pytest.mark.parametrize(
    "fields", [{"startup_s": -1}, {"service_s": 0}, {"concurrency": float("inf")}]
)
def test_wrong_models_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="must be at least"):
        ServiceModel(**fields)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(0, 300), min_size=5, max_size=60),
    st.sampled_from(["rps", "concurrency"]),
    st.floats(0, 40),
    st.floats(0.01, 5),
    st.sampled_from(["kpa", "hpa"]),
)
def test_requests_are_conserved(
    levels: list[float], unit: str, startup_s: float, service_s: float, algorithm: str
) -> None:
    trace = Trace(np.repeat(np.array(levels), 10), unit)  # type: ignore[arg-type]
    policy = ScalingPolicy(algorithm=algorithm, target=10, max_replicas=30)
    result = simulate(trace, policy, ServiceModel(startup_s, service_s, 10))
    assert (result.waiting >= 0).all()
    assert (result.in_flight >= 0).all()
    assert (result.latencies_s >= service_s - 1e-9).all()
    assert (result.ready <= result.requested).all()
    assert result.requested.max() <= 30
    assert (result.waiting <= np.cumsum(result.arrivals) + 1e-6).all()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result() -> None:
    trace, policy = diurnal(days=1), ScalingPolicy(target=10)
    first, again, other = (
        simulate(trace, policy, ServiceModel(), seed=seed).summary() for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.slow
def test_ten_thousand_replicas_cost_no_more_than_a_few() -> None:
    """The work of a step does not depend on the number of replicas."""
    cpu_s = []
    for scale in (1, 10_000):
        trace = diurnal(high=7.0 * 10 * scale, days=1)
        policy = ScalingPolicy(target=10, max_replicas=10_000)
        start = time.process_time()
        result = simulate(trace, policy, ServiceModel(service_s=1.0))
        cpu_s.append(time.process_time() - start)
    assert result.requested.max() == 10_000
    assert cpu_s[1] < 3 * cpu_s[0]
