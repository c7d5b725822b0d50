"""Explanations of pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.engines.kubernetes.names import GROUP_LABEL, QUEUE_GATE, QUEUE_LABEL
from timonel.engines.kubernetes.pods import (
    exit_code,
    is_crash_looping,
    is_lost,
    oom_killed,
    starting,
    why,
    why_restarted,
)

_NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()
_IMAGE = "registry.example/team/train:v1"


def _pod(
    *,
    phase: str = "Pending",
    state: dict[str, Any] | None = None,
    last: dict[str, Any] | None = None,
    conditions: tuple[dict[str, Any], ...] = (),
    memory: str | None = "1073741824",
    deleted: str | None = None,
    restarts: int = 0,
    secret: str = "",
    namespace: str = "",
    labels: dict[str, str] | None = None,
    gates: tuple[str, ...] = (),
    **status: Any,
) -> dict[str, Any]:
    limits = {} if memory is None else {"limits": {"memory": memory}}
    containers = [{"state": state or {}, "lastState": last or {}, "restartCount": restarts}]
    sources = {"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}
    return {
        "metadata": {
            "name": "train-worker-0-abcde",
            **({"deletionTimestamp": deleted} if deleted else {}),
            **({"namespace": namespace} if namespace else {}),
            **({"labels": labels} if labels else {}),
        },
        "spec": {
            "containers": [{"image": _IMAGE, "resources": limits, **sources}],
            **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}),
        },
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            **({"containerStatuses": containers} if state else {}),
            **status,
        },
    }


def _waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def _ended(code: int, reason: str = "Error", message: str | None = None) -> dict[str, Any]:
    output = {} if message is None else {"message": message}
    return {"terminated": {"exitCode": code, "reason": reason, **output}}


def _disruption(reason: str, message: str = "a longer text") -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return {**condition, "message": message}


def _unscheduled(message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}


_NOT_READY = {"type": "PodReadyToStartContainers", "status": "False"}
_NOT_FOUND = (
    f'Back-off pulling image "{_IMAGE}": ErrImagePull: rpc error: code = NotFound desc = failed '
    f'to pull and unpack image "{_IMAGE}": failed to resolve reference "{_IMAGE}": {_IMAGE}: '
    "not found"
)
_NO_CLAIM = (
    "cannot be scheduled: the PersistentVolumeClaim 'photos' does not exist; create it, or correct "
    "TIMONEL_KUBERNETES_CLAIM or --volume and start again"
)
_TRACEBACK = """Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
ModuleNotFoundError: No module named 'pydantic'

"""
_CASES: dict[str, tuple[dict[str, Any], str | None]] = {
    "new": (_pod(), None),
    "pulling": (_pod(state=_waiting("ContainerCreating")), None),
    "running": (_pod(phase="Running", state={"running": {}}), None),
    "succeeded": (_pod(phase="Succeeded", state=_ended(0, "Completed")), None),
    "no GPU": (
        _pod(
            conditions=(
                _unscheduled(
                    "0/5 nodes are available: 1 node(s) had untolerated taint "
                    "{cloud.example/spot: true}, 4 Insufficient nvidia.com/gpu. preemption: 0/5 "
                    "nodes are available: 5 Preemption is not helpful for scheduling."
                ),
            )
        ),
        (
            "cannot be scheduled: of 5 nodes, 1 had untolerated taint {cloud.example/spot: true}, "
            "4 lack free nvidia.com/gpu"
        ),
    ),
    "no memory": (
        _pod(conditions=(_unscheduled("0/1 nodes are available: 1 Insufficient memory."),)),
        "cannot be scheduled: of 1 node, 1 lacks free memory",
    ),
    "no volume": (
        _pod(conditions=(_unscheduled('persistentvolumeclaim "photos" not found'),)),
        _NO_CLAIM,
    ),
    "no volume, newer cluster": (
        _pod(
            conditions=(
                _unscheduled(
                    '0/3 nodes are available: persistentvolumeclaim "photos" not found. not found'
                ),
            )
        ),
        _NO_CLAIM,
    ),
    "unbound volume": (
        _pod(
            conditions=(
                _unscheduled(
                    "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. "
                    "preemption: 0/1 nodes are available: 1 No preemption victims found."
                ),
            )
        ),
        "cannot be scheduled: pod has unbound immediate PersistentVolumeClaims",
    ),
    "held back": (
        _pod(conditions=(_unscheduled("", "SchedulingGated"),)),
        "cannot be scheduled: SchedulingGated",
    ),
    "in a queue": (
        _pod(
            conditions=(_unscheduled("Scheduling is blocked", "SchedulingGated"),),
            labels={QUEUE_LABEL: "vision", GROUP_LABEL: "train-0"},
            gates=("example.com/other", QUEUE_GATE),
            namespace="team",
        ),
        ("waits in the queue 'vision'; 'kubectl describe workload train-0 -n team' says for what"),
    ),
    "image not found": (
        _pod(state=_waiting("ImagePullBackOff", _NOT_FOUND)),
        f"cannot pull the image {_IMAGE}: {_IMAGE}: not found",
    ),
    "image not found, older cluster": (
        _pod(state=_waiting("ImagePullBackOff", f'Back-off pulling image "{_IMAGE}"')),
        f"cannot pull the image {_IMAGE} (ImagePullBackOff)",
    ),
    "bad image name": (
        _pod(state=_waiting("InvalidImageName", "couldn't parse image name")),
        f"cannot pull the image {_IMAGE}: couldn't parse image name",
    ),
    "no secret": (
        _pod(state=_waiting("CreateContainerConfigError", 'secret "bucket" not found')),
        'cannot start its container: secret "bucket" not found',
    ),
    "no secret of the settings": (
        _pod(
            state=_waiting("CreateContainerConfigError", 'secret "buckte" not found'),
            secret="buckte",
            namespace="team",
        ),
        (
            "cannot start its container: the Secret 'buckte' does not exist in the namespace "
            "'team'; create it, or correct TIMONEL_KUBERNETES_SECRET and start again"
        ),
    ),
    "root": (
        _pod(
            state=_waiting(
                "CreateContainerConfigError",
                'container has runAsNonRoot and image will run as root (pod: "train_team(1)", '
                "container: worker)",
            )
        ),
        "cannot start its container: container has runAsNonRoot and image will run as root",
    ),
    "crashing": (
        _pod(phase="Running", state=_waiting("CrashLoopBackOff", "back-off 10s"), last=_ended(2)),
        (
            "exits again and again with code 2; 'kubectl logs train-worker-0-abcde --previous' has "
            "its output"
        ),
    ),
    "crashing with output": (
        _pod(
            phase="Running",
            state=_waiting("CrashLoopBackOff", "back-off 10s"),
            last=_ended(1, message=_TRACEBACK),
            namespace="team",
        ),
        (
            "exits again and again with code 1: ModuleNotFoundError: No module named 'pydantic'; "
            "'kubectl logs train-worker-0-abcde -n team --previous' has its output"
        ),
    ),
    "crashed": (
        _pod(phase="Running", state=_ended(1, message="x" * 1000)),
        (f"exited with code 1: {'x' * 300}...; 'kubectl logs train-worker-0-abcde' has its output"),
    ),
    "restarted": (_pod(phase="Running", state={"running": {}}, last=_ended(2)), None),
    "out of memory": (
        _pod(phase="Failed", state=_ended(137, "OOMKilled")),
        "ran out of memory: it used more than its limit of 1.1 GB",
    ),
    "out of memory of another form": (
        _pod(phase="Failed", state=_ended(137, "OOMKilled"), memory="4Gi"),
        "ran out of memory: it used more than its limit of 4Gi",
    ),
    "out of memory without a limit": (
        _pod(phase="Failed", state=_ended(137, "OOMKilled"), memory=None),
        "ran out of memory: its node had none left",
    ),
    "preempted": (
        _pod(phase="Running", conditions=(_disruption("PreemptionByScheduler"),)),
        "was preempted by a pod of higher priority",
    ),
    "drained": (
        _pod(phase="Failed", conditions=(_disruption("EvictionByEvictionAPI"),), state=_ended(143)),
        "was evicted, as when a node is drained",
    ),
    "node pressure": (
        _pod(
            phase="Failed",
            reason="Evicted",
            conditions=(
                _disruption("TerminationByKubelet", "The node was low on resource:  memory. "),
            ),
        ),
        "was terminated by its node: The node was low on resource: memory.",
    ),
    "another disruption": (
        _pod(conditions=(_disruption("Upgrade", "of the cluster"),)),
        "was disrupted (Upgrade): of the cluster",
    ),
    "admission by the node": (
        _pod(phase="Failed", reason="OutOfnvidia.com/gpu", message="Pod was rejected"),
        "failed: OutOfnvidia.com/gpu: Pod was rejected",
    ),
    "slow volume": (
        _pod(
            state=_waiting("ContainerCreating"),
            conditions=(_NOT_READY,),
            startTime="2026-03-01T11:58:00Z",
        ),
        (
            "has waited more than a minute for its volumes or network; 'kubectl describe pod "
            "train-worker-0-abcde' names the cause"
        ),
    ),
    "not yet slow": (
        _pod(
            state=_waiting("ContainerCreating"),
            conditions=(_NOT_READY,),
            startTime="2026-03-01T11:59:30Z",
        ),
        None,
    ),
    "failed": (
        _pod(phase="Failed", state=_ended(1)),
        "exited with code 1; 'kubectl logs train-worker-0-abcde' has its output",
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_pods_are_explained(case: str) -> None:
    pod, expected = _CASES[case]
    assert why(pod, _NOW) == expected


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (_pod(state={"running": {}}), None),
        (_pod(state={"running": {}}, last=_ended(0)), None),
        (_pod(state=_waiting("CrashLoopBackOff"), last=_ended(1)), None),
        (
            _pod(state={"running": {}}, last=_ended(1, message="no bucket\n"), restarts=1),
            (
                "exited with code 1: no bucket; 'kubectl logs train-worker-0-abcde --previous' has "
                "its output"
            ),
        ),
        (
            _pod(state={"running": {}}, last=_ended(1, message="no bucket\n"), restarts=2),
            (
                "exits again and again with code 1: no bucket; 'kubectl logs train-worker-0-abcde "
                "--previous' has its output"
            ),
        ),
        (
            _pod(state={"running": {}}, last=_ended(137, "OOMKilled"), memory=None),
            "ran out of memory: its node had none left",
        ),
    ],
)
def test_restarts_are_explained(pod: dict[str, Any], expected: str | None) -> None:
    assert why_restarted(pod) == expected


@pytest.mark.parametrize(
    ("state", "started", "ready", "expected"),
    [
        (_waiting("ContainerCreating"), "11:59:50", "True", "is pulling its image"),
        (
            _waiting("ContainerCreating"),
            "11:59:50",
            "False",
            "is pulling its image or mounting its volumes",
        ),
        (_waiting("PodInitializing"), "11:59:58", "True", None),
        ({"running": {}}, "11:59:50", "True", None),
    ],
)
def test_the_start_of_a_pod_is_described(
    state: dict[str, Any], started: str, ready: str, expected: str | None
) -> None:
    pod = _pod(
        state=state,
        startTime=f"2026-03-01T{started}Z",
        conditions=({"type": "PodReadyToStartContainers", "status": ready},),
    )
    assert starting(pod, _NOW) == expected
    assert why(pod, _NOW) is None
    assert starting(_pod(), _NOW) is None


def test_a_crash_loop_has_several_restarts() -> None:
    looping = _waiting("CrashLoopBackOff")
    assert is_crash_looping(_pod(state=looping, last=_ended(1), restarts=2))
    assert not is_crash_looping(_pod(state=looping, last=_ended(1), restarts=1))
    assert not is_crash_looping(_pod(state={"running": {}}, last=_ended(1), restarts=5))
    assert not is_crash_looping(_pod())


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (_pod(), None),
        (_pod(state={"running": {}}), None),
        (_pod(state=_ended(0)), 0),
        (_pod(state=_ended(137)), 137),
        (_pod(state={"running": {}}, last=_ended(2)), None),
        (_pod(state=_waiting("CrashLoopBackOff"), last=_ended(2)), 2),
    ],
)
def test_exit_codes(pod: dict[str, Any], expected: int | None) -> None:
    assert exit_code(pod) == expected


def test_being_killed_is_not_always_for_memory() -> None:
    assert oom_killed(_pod(state=_ended(137, "OOMKilled")))
    assert not oom_killed(_pod(state=_ended(137)))
    assert not oom_killed(_pod())


@pytest.mark.parametrize(
    ("deleted", "phase", "expected"),
    [
        (None, "Running", False),
        ("2026-03-01T12:00:20Z", "Running", False),  # the end of its grace period
        ("2026-03-01T11:59:50Z", "Running", False),
        ("2026-03-01T11:59:49Z", "Running", True),
        ("2026-03-01T11:00:00Z", "Pending", True),
        ("2026-03-01T11:00:00Z", "Failed", False),  # kept by a finalizer
    ],
)
def test_pods_of_lost_nodes(deleted: str | None, phase: str, expected: bool) -> None:
    assert is_lost(_pod(phase=phase, deleted=deleted), _NOW) is expected


# The server allows no others.
_REASONS = st.from_regex(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", fullmatch=True)
_STATES = st.builds(_waiting, _REASONS, st.text()) | st.builds(_ended, st.integers(0, 255))
_CONDITIONS = st.builds(_unscheduled, st.text()) | st.builds(_disruption, _REASONS, st.text())


@given(
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    st.none() | _STATES,
    st.lists(_CONDITIONS, max_size=2),
)
def test_explanations_are_single_lines(
    phase: str, state: dict[str, Any] | None, conditions: list[dict[str, Any]]
) -> None:
    text = why(_pod(phase=phase, state=state, conditions=tuple(conditions)), _NOW)
    assert text is None or (text and "\n" not in text)
