"""Status of services: states, messages and addresses of pods as clusters report them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.engines.kubernetes.specs import SETTINGS
from timonel.engines import HealthCheck, ReplicaStatus, ServiceSpec, ServiceState, Sidecar
from timonel.engines.kubernetes.services.manifests import service_manifests
from timonel.engines.kubernetes.services.status import needs_events, service_status

_NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
_CHECK = HealthCheck(ready_path="/ready", alive_path="/alive")
_SPEC = ServiceSpec(name="web", module="web", ports=("http", "grpc"), check=_CHECK)


def _at(seconds: float) -> str:
    """Return a time so many seconds before or after now."""
    return (_NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _pod(
    name: str = "web-1",
    *,
    created: float = -1000,
    ready: tuple[str, float] | None = ("False", -1000),
    state: dict[str, Any] | None = None,
    last: dict[str, Any] | None = None,
    conditions: tuple[dict[str, Any], ...] = (),
    spec: ServiceSpec = _SPEC,
    phase: str = "Running",
    metadata: dict[str, Any] | None = None,
    sidecar: dict[str, Any] | None = None,
    **container: Any,
) -> dict[str, Any]:
    template = service_manifests(spec, SETTINGS)[0]["spec"]["template"]
    found = list(conditions)
    if ready is not None:
        status, since = ready
        found.append({"type": "Ready", "status": status, "lastTransitionTime": _at(since)})
    status = {"restartCount": 0, "state": state or {}, "lastState": last or {}, **container}
    return {
        "metadata": {
            **template["metadata"],
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": _at(created),
            **(metadata or {}),
        },
        "spec": template["spec"],
        "status": {
            "phase": phase,
            "podIP": "10.0.0.7",
            "conditions": found,
            **({"containerStatuses": [status]} if state else {}),
            **({"initContainerStatuses": [sidecar]} if sidecar else {}),
        },
    }


def _running(since: float) -> dict[str, Any]:
    return {"running": {"startedAt": _at(since)}}


def _ended(code: int, ran_s: float = 400, ago_s: float = 100, **fields: Any) -> dict[str, Any]:
    times = {"startedAt": _at(-ago_s - ran_s), "finishedAt": _at(-ago_s)}
    return {"terminated": {"exitCode": code, "reason": "Error", **times, **fields}}


def _deployment(**fields: Any) -> dict[str, Any]:
    found = service_manifests(_SPEC.model_copy(update={"replicas": 2}), SETTINGS)[0]
    return {**found, "metadata": {**found["metadata"], **fields}, "status": {}}


def _replica(pod: dict[str, Any], *events: dict[str, Any]) -> ReplicaStatus:
    (found,) = service_status(_deployment(), [pod], events, _NOW.timestamp()).replicas
    return found


def test_the_status_of_a_service() -> None:
    pods = [
        _pod("web-b", created=-5, state=_running(-4), started=True, ready=("True", -2)),
        _pod("web-c", created=-9, phase="Failed"),
        _pod("web-a", created=-5, state=_running(-4), started=False, ready=("False", -5)),
        _pod("web-d", created=-9, state=_running(-8), started=True, ready=("True", -7)),
    ]
    status = service_status(_deployment(), pods, [], _NOW.timestamp())
    assert [replica.name for replica in status.replicas] == ["web-d", "web-a", "web-b"]
    assert [replica.state for replica in status.replicas] == ["ready", "starting", "ready"]
    assert (status.name, status.revision, status.digest) == ("web", 1, _SPEC.digest)
    assert (status.state, status.requested, status.message) == (ServiceState.ACTIVE, 2, None)
    first = status.replicas[0]
    assert first.addresses == {"http": "10.0.0.7:8500", "grpc": "10.0.0.7:8501"}
    assert first.since == _NOW.timestamp() - 7
    deleted = _deployment(deletionTimestamp=_at(0))
    assert service_status(deleted, [], [], _NOW.timestamp()).state is ServiceState.DELETING


def test_a_quota_that_leaves_no_room_for_replicas() -> None:
    message = 'pods "web-1" is forbidden:\nexceeded quota: small'
    condition = {"type": "ReplicaFailure", "status": "True", "message": message}
    deployment = {**_deployment(), "status": {"conditions": [condition]}}
    status = service_status(deployment, [], [], _NOW.timestamp())
    assert status.message is not None
    assert "refuses its replicas" in status.message
    assert status.message.endswith("exceeded quota: small")


_DELETED = {"deletionTimestamp": _at(20), "deletionGracePeriodSeconds": 30}
_LOST = {"deletionTimestamp": _at(-60), "deletionGracePeriodSeconds": 30}
_STATES: dict[str, tuple[dict[str, Any], str, float]] = {
    "new": (_pod(ready=None, phase="Pending"), "starting", -1000),
    "started": (_pod(state=_running(-9)), "starting", -9),
    "checked": (_pod(state=_running(-9), started=True), "starting", -9),
    "ready": (_pod(state=_running(-9), started=True, ready=("True", -5)), "ready", -5),
    "unready": (_pod(state=_running(-9), started=True, ready=("False", -3)), "unready", -3),
    "unready in the second of its start": (
        _pod(state=_running(-9), started=True, ready=("False", -9)),
        "unready",
        -9,
    ),
    # Its readiness changed when it ended, before the present start.
    "again": (
        _pod(state=_running(-9), started=True, ready=("False", -10), last=_ended(1)),
        "starting",
        -9,
    ),
    "ended": (_pod(state=_ended(3, ago_s=2)), "restarting", -2),
    "waiting": (
        _pod(state={"waiting": {"reason": "CrashLoopBackOff"}}, last=_ended(3, ago_s=7)),
        "restarting",
        -7,
    ),
    "stopping": (
        _pod(state=_running(-99), started=True, ready=("True", -50), metadata=_DELETED),
        "stopping",
        -10,
    ),
    "lost": (_pod(state=_running(-99), started=True, metadata=_LOST), "lost", -90),
}


@pytest.mark.parametrize("case", _STATES)
def test_states(case: str) -> None:
    pod, state, since = _STATES[case]
    replica = _replica(pod)
    assert (replica.state, replica.since) == (state, _NOW.timestamp() + since)


def test_a_service_settles_without_the_replica_of_a_lost_node() -> None:
    pods = [
        _pod(name, state=_running(-99), started=True, ready=("True", -50)) for name in ("a", "b")
    ]
    for metadata, is_settled in ((_LOST, True), (_DELETED, False)):
        gone = _pod("c", state=_running(-99), started=True, metadata=metadata)
        status = service_status(_deployment(), [*pods, gone], [], _NOW.timestamp())
        assert len(status.replicas) == 3
        assert status.is_settled == is_settled


_UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}
_EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
_MESSAGES: dict[str, tuple[dict[str, Any], str | None]] = {
    "running": (_pod(state=_running(-9)), None),
    "unscheduled": (
        _pod(phase="Pending", conditions=(_UNSCHEDULED,)),
        "cannot be scheduled: of 3 nodes, 3 lack free nvidia.com/gpu",
    ),
    "no image": (
        _pod(phase="Pending", state={"waiting": {"reason": "ErrImagePull", "message": "gone"}}),
        f"cannot pull the image {SETTINGS.image}: gone",
    ),
    "failed": (
        _pod(state=_ended(3, message="starting\nno such model\n\n")),
        "ended with exit code 3: no such model",
    ),
    "silent": (_pod(state=_ended(0)), "ended with exit code 0"),
    "restarted": (_pod(state=_running(-9), last=_ended(3)), "ended with exit code 3"),
    "killed": (_pod(state=_running(-9), last=_ended(137)), "was killed by SIGKILL"),
    "crashed": (_pod(state=_running(-9), last=_ended(139)), "was killed by SIGSEGV"),
    "late": (_pod(state=_ended(137, ran_s=182)), "was not ready within 180 s"),
    "late and polite": (_pod(state=_ended(143, ran_s=181)), "was not ready within 180 s"),
    "killed earlier": (_pod(state=_ended(137, ran_s=170)), "was killed by SIGKILL"),
    "failed late": (_pod(state=_ended(1, ran_s=181)), "ended with exit code 1"),
    "out of memory": (
        _pod(state=_running(-9), last=_ended(137, reason="OOMKilled")),
        "ran out of memory: its node had none left",
    ),
    "no program": (
        _pod(state=_ended(128, reason="StartError", message='exec: "serv": not found')),
        'cannot start its container: exec: "serv": not found',
    ),
    "evicted": (
        _pod(state=_running(-99), metadata=_DELETED, conditions=(_EVICTED,)),
        "was evicted, as when a node is drained",
    ),
    "stopping": (_pod(state=_running(-99), last=_ended(3), metadata=_DELETED), None),
}


@pytest.mark.parametrize("case", _MESSAGES)
def test_messages(case: str) -> None:
    pod, message = _MESSAGES[case]
    assert _replica(pod).message == message


def _event(
    name: str = "web-1", ago_s: float = 102, probe: str = "liveness", container: str = "replica"
) -> dict[str, Any]:
    about = {"uid": f"uid-{name}", "fieldPath": f"spec.containers{{{container}}}"}
    message = f"Container {container} failed {probe} probe, will be restarted"
    return {"involvedObject": about, "message": message, "lastTimestamp": _at(-ago_s)}


def test_a_hang_is_told_by_an_event() -> None:
    pod = _pod(state=_running(-99), last=_ended(137), restartCount=1)
    assert needs_events(pod)
    assert _replica(pod, _event()).message == "hung: no answer at /alive for 11 s"
    others = [
        _event(name="web-2"),
        _event(ago_s=500),
        _event(ago_s=90),
        _event(container="envoy"),
        {**_event(), "message": "Stopping container replica"},
        {**_event(), "lastTimestamp": None},
    ]
    assert _replica(pod, *others).message == "was killed by SIGKILL"


def test_events_are_needed_only_for_kills_by_nodes() -> None:
    assert not needs_events(_pod(state=_running(-9)))
    assert not needs_events(_pod(state=_ended(3)))
    assert not needs_events(_pod(state=_ended(137, reason="OOMKilled")))
    assert needs_events(_pod(state=_running(-9), last=_ended(143)))


def test_the_sidecar_of_a_replica() -> None:
    envoy = Sidecar(name="envoy", command=("envoy",), ports={"public": 8080})
    spec = _SPEC.model_copy(update={"sidecar": envoy})
    healthy = {"name": "envoy", "state": _running(-9)}
    replica = _replica(_pod(spec=spec, state=_running(-9), sidecar=healthy))
    assert replica.addresses["public"] == "10.0.0.7:8080"
    assert replica.message is None
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    broken = {"name": "envoy", "state": waiting, "lastState": _ended(1, message="bad bootstrap")}
    replica = _replica(_pod(spec=spec, state=_running(-9), sidecar=broken))
    assert replica.message == "its sidecar envoy ended with exit code 1: bad bootstrap"
    missing = {"name": "envoy", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}
    replica = _replica(_pod(spec=spec, phase="Pending", sidecar=missing))
    assert replica.message == "its sidecar envoy does not start: no"


def test_addresses_of_ipv6_and_of_pods_without_one() -> None:
    pod = _pod(state=_running(-9))
    pod["status"]["podIP"] = "fd00::7"
    assert _replica(pod).addresses["http"] == "[fd00::7]:8500"
    del pod["status"]["podIP"]
    assert _replica(pod).addresses == {}
