"""Explain the state of pods. Pure functions of Pod objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from timonel.units import format_bytes, format_seconds

Pod = Mapping[str, Any]

_SLOW_START_S = 60.0
_ENDED = frozenset({"Succeeded", "Failed"})
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
_NO_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
    | {"ImageInspectError", "RegistryUnavailable"}
)
# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "deleted because its node is not ready, or has a new taint",
    "EvictionByEvictionAPI": "evicted, as when a node is drained",
    "DeletionByPodGC": "deleted because its node no longer exists",
    "TerminationByKubelet": "terminated by its node",
}
_WRAPPERS = (
    r'^Back-off pulling image "[^"]*"(: )?',
    r"^ErrImagePull: ",
    r"rpc error: code = \w+ desc = ",
    r'failed to pull and unpack image "[^"]*": ',
    r'failed to resolve (reference|image) "[^"]*": ',
)


def why(pod: Pod, now: float) -> str | None:
    """Explain why a pod does not run.

    Args:
        pod: The pod.
        now: Time in seconds since the epoch.

    Returns:
        A phrase for users; None: it runs, is about to, or has succeeded.
    """
    if oom_killed(pod):
        return out_of_memory(pod)
    return (
        disrupted(pod)
        or _not_scheduled(pod)
        or _waiting(pod)
        or _slow_start(pod, now)
        or _failed(pod)
    )


def is_lost(pod: Pod, now: float, margin_s: float = 10.0) -> bool:
    """Decide whether the node of a deleted pod is lost.

    A node removes a pod before the end of its grace period; it has this much more time.
    """
    deadline = pod["metadata"].get("deletionTimestamp")
    if deadline is None or pod["status"].get("phase") in _ENDED:
        return False
    return now > timestamp(deadline) + margin_s


def is_running(pod: Pod) -> bool:
    """Decide whether a pod's container runs."""
    return "running" in _container(pod).get("state", {})


def oom_killed(pod: Pod) -> bool:
    """Decide whether a pod's container exceeded its memory limit."""
    return _terminated(pod).get("reason") == "OOMKilled"


def exit_code(pod: Pod) -> int | None:
    """Return the exit code of a pod's container; None: it has not ended."""
    code: int | None = _terminated(pod).get("exitCode")
    return code


def out_of_memory(pod: Pod) -> str:
    """Explain that a pod's container exceeded its memory limit."""
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    if "memory" not in limits:
        return "out of memory: its node had none left"
    memory = limits["memory"]
    if memory.isdecimal():
        memory = format_bytes(int(memory))
    return f"out of memory: it used more than its limit of {memory}"


def disrupted(pod: Pod) -> str | None:
    """Explain why the cluster deletes a pod by itself; None: it does not."""
    found = condition(pod, "DisruptionTarget")
    if found.get("status") != "True":
        return None
    reason, message = found.get("reason", ""), _line(found.get("message"))
    text = _DISRUPTIONS.get(reason, f"disrupted ({reason})")
    # The messages of other reasons repeat them.
    is_specific = reason not in _DISRUPTIONS or reason == "TerminationByKubelet"
    return f"{text}: {message}" if is_specific and message else text


def _not_scheduled(pod: Pod) -> str | None:
    found = condition(pod, "PodScheduled")
    if found.get("status") != "False":
        return None
    message = _line(found.get("message")).split(" preemption: ")[0].rstrip(". ")
    nodes = re.fullmatch(r"0/(\d+) nodes are available: (.+)", message)
    if nodes is None:
        return f"not scheduled: {message or found.get('reason', '')}"
    reasons = re.sub(r"\b(\d+) node\(s\) ", r"\1 ", nodes[2])
    reasons = re.sub(r"\b(\d+) Insufficient ([^ ,]+)", r"\1 without enough free \2", reasons)
    return f"no node can run it; of {nodes[1]}: {reasons}"


def _waiting(pod: Pod) -> str | None:
    waiting = _container(pod).get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), _line(waiting.get("message"))
    if not reason or reason in _STARTING:
        return None
    if reason in _NO_IMAGE:
        image = pod["spec"]["containers"][0]["image"]
        for wrapper in _WRAPPERS:
            message = re.sub(wrapper, "", message)
        return f"cannot pull the image {image}" + (f": {message}" if message else f" ({reason})")
    if reason == "CrashLoopBackOff":
        return f"exits again and again, last with exit code {exit_code(pod)}"
    # The rest names the pod and the container.
    message = message.partition(" (pod: ")[0]
    return f"cannot start its container: {message or reason}"


def _slow_start(pod: Pod, now: float) -> str | None:
    """Explain that a node waits for volumes, which only events name."""
    ready, started = condition(pod, "PodReadyToStartContainers"), pod["status"].get("startTime")
    if ready.get("status") != "False" or started is None or pod["status"]["phase"] != "Pending":
        return None
    waited_s = now - timestamp(started)
    if waited_s < _SLOW_START_S:
        return None
    name = pod["metadata"]["name"]
    return (
        f"its node has waited {format_seconds(waited_s)} for its volumes or network; "
        f"'kubectl describe pod {name}' names the cause"
    )


def _failed(pod: Pod) -> str | None:
    """Explain the end of a pod, by its node or by itself."""
    status = pod["status"]
    if status.get("phase") == "Failed" and (status.get("reason") or status.get("message")):
        message = _line(status.get("message"))
        return ": ".join(part for part in (status.get("reason"), message) if part)
    code = exit_code(pod)
    return f"exited with code {code}" if code else None


def _terminated(pod: Pod) -> Mapping[str, Any]:
    """Return how a container ended that does not run again yet; empty if it runs."""
    container = _container(pod)
    state: Mapping[str, Any] = container.get("state", {})
    if "waiting" in state:
        state = container.get("lastState", {})
    ended: Mapping[str, Any] = state.get("terminated", {})
    return ended


def _container(pod: Pod) -> Mapping[str, Any]:
    found: list[Mapping[str, Any]] = pod["status"].get("containerStatuses") or [{}]
    return found[0]


def condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    """Return a condition of a pod; empty if it has none of that type."""
    conditions: list[Mapping[str, Any]] = pod["status"].get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def timestamp(text: str) -> float:
    """Return a time of an object in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()
