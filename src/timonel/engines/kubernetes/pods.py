"""Explain the state of pods. Pure functions of Pod objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from timonel.engines.kubernetes.names import GROUP_LABEL, QUEUE_GATE, QUEUE_LABEL
from timonel.units import format_bytes

Pod = Mapping[str, Any]

_SHORT_START_S = 5.0
_SLOW_START_S = 60.0
_SHOWN = 300
"""Maximum characters of a line of output in a message."""
_CRASH_LOOP = 2
"""Restarts of a container that crashes at each start."""
_ENDED = frozenset({"Succeeded", "Failed"})
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
_NO_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
    | {"ImageInspectError", "RegistryUnavailable"}
)
# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
_DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted by a pod of higher priority",
    "DeletionByTaintManager": "was deleted because its node is not ready, or has a new taint",
    "EvictionByEvictionAPI": "was evicted, as when a node is drained",
    "DeletionByPodGC": "was deleted because its node no longer exists",
    "TerminationByKubelet": "was terminated by its node",
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
        now: Time in seconds since the epoch.

    Returns:
        A phrase for users, to be read after the name of the pod, such as ``cannot be scheduled``;
        None: it runs, is about to, or has succeeded.
    """
    if oom_killed(pod):
        return out_of_memory(pod)
    return (
        disrupted(pod)
        or _in_queue(pod)
        or _not_scheduled(pod)
        or _waiting(pod)
        or _slow_start(pod, now)
        or _failed(pod)
    )


def starting(pod: Pod, now: float) -> str | None:
    """Describe what a pod does before its container runs; None: it runs, or is about to.

    Args:
        pod: The pod, which `why` does not explain.
        now: Time in seconds since the epoch.
    """
    reason = _container(pod).get("state", {}).get("waiting", {}).get("reason")
    started = pod["status"].get("startTime")
    if reason not in _STARTING or started is None or now - timestamp(started) < _SHORT_START_S:
        return None
    # With the network of a pod its volumes are ready.
    if condition(pod, "PodReadyToStartContainers").get("status") == "True":
        return "is pulling its image"
    return "is pulling its image or mounting its volumes"


def why_restarted(pod: Pod) -> str | None:
    """Explain the last failure of a container that runs again; None: it has not failed."""
    container = _container(pod)
    ended = container.get("lastState", {}).get("terminated", {})
    if not is_running(pod) or not ended.get("exitCode"):
        return None
    return out_of_memory(pod) if ended.get("reason") == "OOMKilled" else _crash(pod, ended)


def is_crash_looping(pod: Pod) -> bool:
    """Decide whether a pod's container waits for its next start after at least three crashes."""
    return _backs_off(pod) and _restarts(pod) >= _CRASH_LOOP


def last_line(ended: Mapping[str, Any]) -> str | None:
    """Return the last line that a container has left; None: there is none."""
    lines = [line.strip() for line in (ended.get("message") or "").splitlines()]
    line = next((line for line in reversed(lines) if line), None)
    return line if line is None or len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


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
        return "ran out of memory: its node had none left"
    memory = limits["memory"]
    if memory.isdecimal():
        memory = format_bytes(int(memory))
    return f"ran out of memory: it used more than its limit of {memory}"


def disrupted(pod: Pod) -> str | None:
    """Explain why the cluster deletes a pod by itself; None: it does not."""
    found = condition(pod, "DisruptionTarget")
    if found.get("status") != "True":
        return None
    reason, message = found.get("reason", ""), _line(found.get("message"))
    text = _DISRUPTIONS.get(reason, f"was disrupted ({reason})")
    # The messages of other reasons repeat them.
    is_specific = reason not in _DISRUPTIONS or reason == "TerminationByKubelet"
    return f"{text}: {message}" if is_specific and message else text


def _in_queue(pod: Pod) -> str | None:
    """Explain that Kueue has not admitted a pod; None: it has, or does not manage the pod."""
    if not any(gate["name"] == QUEUE_GATE for gate in pod["spec"].get("schedulingGates") or ()):
        return None
    labels = pod["metadata"].get("labels") or {}
    command = _kubectl("describe workload", pod, name=labels.get(GROUP_LABEL))
    return f"waits in the queue '{labels.get(QUEUE_LABEL)}'; {command} says for what"


def _not_scheduled(pod: Pod) -> str | None:
    found = condition(pod, "PodScheduled")
    if found.get("status") != "False":
        return None
    message = _line(found.get("message")).split(" preemption: ")[0].rstrip(". ")
    if missing := re.search(r'persistentvolumeclaim "([^"]+)" not found', message):
        return f"cannot be scheduled: {_missing_claim(pod, missing[1])}"
    nodes = re.fullmatch(r"0/(\d+) nodes are available: (.+)", message)
    if nodes is None:
        return f"cannot be scheduled: {message or found.get('reason', '')}"
    reasons = re.sub(r"\b(\d+) node\(s\) ", r"\1 ", nodes[2])
    reasons = re.sub(r"\b1 Insufficient ([^ ,]+)", r"1 lacks free \1", reasons)
    reasons = re.sub(r"\b(\d+) Insufficient ([^ ,]+)", r"\1 lack free \2", reasons)
    if not reasons[0].isdecimal():
        return f"cannot be scheduled: {reasons}"
    unit = "node" if nodes[1] == "1" else "nodes"
    return f"cannot be scheduled: of {nodes[1]} {unit}, {reasons}"


def _missing_claim(pod: Pod, name: str) -> str:
    return (
        f"the PersistentVolumeClaim '{name}' does not exist{_in_namespace(pod)}; create it, or "
        "correct TIMONEL_KUBERNETES_CLAIM or --volume and start again"
    )


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
        return _crash(pod, _terminated(pod))
    # The rest names the pod and the container.
    message = message.partition(" (pod: ")[0]
    message = _missing_secret(pod, message) or message
    return f"cannot start its container: {message or reason}"


def _missing_secret(pod: Pod, message: str) -> str | None:
    """Explain that the Secret of the settings is missing; None: it is not."""
    found = re.fullmatch(r'secret "(.+)" not found', message)
    sources = pod["spec"]["containers"][0].get("envFrom") or ()
    if found is None or not any(
        source.get("secretRef", {}).get("name") == found[1] for source in sources
    ):
        return None
    return (
        f"the Secret '{found[1]}' does not exist{_in_namespace(pod)}; create it, or correct "
        "TIMONEL_KUBERNETES_SECRET and start again"
    )


def _in_namespace(pod: Pod) -> str:
    namespace = pod["metadata"].get("namespace")
    return f" in the namespace '{namespace}'" if namespace else ""


def _slow_start(pod: Pod, now: float) -> str | None:
    """Explain that a node waits for volumes, which only events name."""
    ready, started = condition(pod, "PodReadyToStartContainers"), pod["status"].get("startTime")
    if ready.get("status") != "False" or started is None or pod["status"]["phase"] != "Pending":
        return None
    if now - timestamp(started) < _SLOW_START_S:
        return None
    # Without the exact time, which would be another message in each second.
    command = _kubectl("describe pod", pod)
    return f"has waited more than a minute for its volumes or network; {command} names the cause"


def _failed(pod: Pod) -> str | None:
    """Explain the end of a pod, by its node or by itself."""
    status = pod["status"]
    if status.get("phase") == "Failed" and (status.get("reason") or status.get("message")):
        message = _line(status.get("message"))
        return ": ".join(part for part in ("failed", status.get("reason"), message) if part)
    ended = _terminated(pod)
    return _crash(pod, ended) if ended.get("exitCode") else None


def _crash(pod: Pod, ended: Mapping[str, Any]) -> str:
    """Describe the end of a container with the last line of its output."""
    repeats = _backs_off(pod) or _restarts(pod) >= _CRASH_LOOP
    how = "exits again and again" if repeats else "exited"
    line = last_line(ended)
    text = f"{how} with code {ended.get('exitCode')}" + (f": {line}" if line else "")
    is_previous = "terminated" in _container(pod).get("lastState", {})
    command = _kubectl("logs", pod, *(["--previous"] if is_previous else []))
    return f"{text}; {command} has its output"


def _backs_off(pod: Pod) -> bool:
    waiting = _container(pod).get("state", {}).get("waiting", {})
    return bool(waiting.get("reason") == "CrashLoopBackOff")


def _restarts(pod: Pod) -> int:
    count: int = _container(pod).get("restartCount", 0)
    return count


def _kubectl(words: str, pod: Pod, *options: str, name: str | None = None) -> str:
    """Return a quoted command about a pod, or about another object of its namespace."""
    metadata = pod["metadata"]
    place = ["-n", metadata["namespace"]] if "namespace" in metadata else []
    return f"'{' '.join(['kubectl', words, name or metadata['name'], *place, *options])}'"


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


def created(found: Mapping[str, Any]) -> float:
    """Return when an object was created in seconds since the epoch."""
    return timestamp(found["metadata"]["creationTimestamp"])


def timestamp(text: str) -> float:
    """Return a time of an object in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()
