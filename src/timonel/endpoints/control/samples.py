"""Measurements of single replicas, for the HPA algorithm. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from timonel.endpoints.autoscaling import ReplicaSample, ScalingPolicy
from timonel.endpoints.autoscaling.policy import Metric
from timonel.endpoints.control.scrape import ReplicaLoad
from timonel.engines import ReplicaStatus
from timonel.engines.resources import Resources

DEFAULT_CPUS = 1.0
"""Requested CPUs of a replica that states none."""
_MIB = 1 << 20


def samples(
    now: float,
    replicas: Sequence[ReplicaStatus],
    average: Callable[[str], tuple[float, ReplicaLoad] | None],
    policy: ScalingPolicy,
    resources: Resources,
) -> dict[str, list[ReplicaSample]]:
    """Return measurements by metric of the policy: CPUs, MiB, requests or requests per second.

    Args:
        now: The time in seconds since the epoch.
        average: Returns the age in seconds of the first reading of a replica and its load since,
            by `replica_key`; None if it is unknown.
    """
    metrics = {policy.metric, *(each.metric for each in policy.further_metrics)}
    alive = [replica for replica in replicas if replica.state != "stopping"]
    return {
        metric: [
            _sample(now, each, average(replica_key(each)), metric, resources) for each in alive
        ]
        for metric in metrics
    }


def replica_key(replica: ReplicaStatus) -> str:
    """Return the name of one start of a replica: its counters begin at zero."""
    return f"{replica.name}.{replica.restarts}"


def _sample(
    now: float,
    replica: ReplicaStatus,
    average: tuple[float, ReplicaLoad] | None,
    metric: Metric,
    resources: Resources,
) -> ReplicaSample:
    age_s, load = average or (math.inf, None)
    return ReplicaSample(
        usage=None if load is None else _usage(load, metric),
        request=_request(resources, metric),
        ready=replica.state == "ready",
        pending=replica.state in ("starting", "restarting", "lost"),
        # Engines do not report when a replica started; it became ready later than that, so what
        # it used until then is left out. One whose checks fail now has been ready before.
        started_at=-math.inf if replica.state == "unready" else replica.since,
        ready_since=replica.since,
        measured_since=now - age_s,
    )


def _usage(load: ReplicaLoad, metric: Metric) -> float:
    if metric == "cpu":
        return load.cpus
    if metric == "memory":
        return load.memory_bytes / _MIB
    return load.rate if metric == "rps" else load.concurrency


def _request(resources: Resources, metric: Metric) -> float:
    if metric == "cpu":
        return resources.cpus or DEFAULT_CPUS
    return (resources.memory_bytes or 0) / _MIB if metric == "memory" else 0.0
