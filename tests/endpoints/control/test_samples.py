from __future__ import annotations

import math
from typing import Any

from timonel.endpoints.autoscaling import AutoscalerState, Replicas, ScalingPolicy, decide
from timonel.endpoints.control.samples import replica_key, samples
from timonel.endpoints.control.scrape import ReplicaLoad
from timonel.engines import ReplicaStatus
from timonel.engines.resources import Resources

NOW = 10_000.0
CPU = ScalingPolicy(metric="cpu", target=50)


def replica(name: str = "a", state: Any = "ready", since: float = 100.0) -> ReplicaStatus:
    return ReplicaStatus(name=name, revision=1, state=state, since=since)


def needed(policy: ScalingPolicy, resources: Resources, *loads: ReplicaLoad, **status: Any) -> int:
    replicas = [replica(str(number), **status) for number in range(len(loads))]
    known = {replica_key(r): (15.0, load) for r, load in zip(replicas, loads, strict=True)}
    found = samples(NOW, replicas, known.get, policy, resources)
    state = AutoscalerState.begin(NOW, policy)
    return decide(NOW, Replicas(len(loads), len(loads), samples=found), state, policy)[0].replicas


def test_cpus_are_a_share_of_those_requested_or_of_one() -> None:
    assert needed(CPU, Resources(), ReplicaLoad(cpus=1.0)) == 2
    assert needed(CPU, Resources(cpus=2), ReplicaLoad(cpus=1.0)) == 1
    assert needed(CPU, Resources(cpus=0.5), ReplicaLoad(cpus=0.5), ReplicaLoad(cpus=0.5)) == 4


def test_memory_is_a_share_or_an_amount() -> None:
    load = ReplicaLoad(memory_bytes=3 << 30)
    share = ScalingPolicy(metric="memory", target=100)
    assert needed(share, Resources(memory_bytes=1 << 30), load) == 3
    assert needed(share, Resources(), load) == 1  # unknown, so nothing changes
    amount = ScalingPolicy(metric="memory", target=1536, target_unit="MiB")
    assert needed(amount, Resources(), load) == 2


def test_requests_are_metrics_too() -> None:
    for metric, load in (
        ("rps", ReplicaLoad(rate=30)),
        ("concurrency", ReplicaLoad(concurrency=30)),
    ):
        policy = ScalingPolicy(metric=metric, algorithm="hpa", target=10)
        assert needed(policy, Resources(), load) == 3


def test_work_before_readiness_does_not_count() -> None:
    # The average of 15 s begins before it got ready.
    assert needed(CPU, Resources(), ReplicaLoad(cpus=4.0), since=NOW - 5) == 1
    assert needed(CPU, Resources(), ReplicaLoad(cpus=4.0), since=NOW - 16) > 1


def test_states_of_replicas() -> None:
    replicas = [
        replica("ready"),
        replica("starting", "starting", NOW - 1),
        replica("ended", "stopping"),
        replica("unready", "unready", NOW - 1),
    ]
    (found,) = samples(NOW, replicas, lambda _: None, CPU, Resources()).values()
    assert [each.pending for each in found] == [False, True, False]
    assert [each.usage for each in found] == [None] * 3
    assert found[2].started_at == -math.inf
