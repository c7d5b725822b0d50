"""Status of services, from their Deployments and pods. Pure functions of objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from timonel.engines.kubernetes import names, pods
from timonel.engines.kubernetes.api import Object
from timonel.engines.service_spec import ReplicaState, ReplicaStatus, ServiceState, ServiceStatus
from timonel.processes.spawn import describe_exit

_ENDED = frozenset({"Succeeded", "Failed"})
_NEVER_STARTED = frozenset({"ContainerCannotRun", "StartError"})
_KILLED = frozenset({128 + 9, 128 + 15})
# From the decision of a node to the end of the container.
_KILL_S = 10.0
# Times of objects are whole seconds.
_CLOCK_S = 1.0


def is_service(deployment: Object) -> bool:
    """Decide whether a Deployment is one of a service."""
    return names.all_services().items() <= (deployment["metadata"].get("labels") or {}).items()


def needs_events(pod: Object) -> bool:
    """Decide whether only events say why a replica was killed."""
    ended = _last_end(pod)
    return ended.get("exitCode") in _KILLED and ended.get("reason") != "OOMKilled"


def service_status(
    deployment: Object, found: Iterable[Object], events: Iterable[Object], now: float
) -> ServiceStatus:
    """Return the status of a service.

    Args:
        events: Events of these pods with the reason ``Killing``.
        now: Time in seconds since the epoch.
    """
    metadata = deployment["metadata"]
    # Pods that have ended, such as evicted ones, are replaced and left for inspection.
    running = (pod for pod in found if pod["status"].get("phase") not in _ENDED)
    ordered = sorted(running, key=lambda pod: (pods.created(pod), pod["metadata"]["name"]))
    state = ServiceState.DELETING if _is_deleted(deployment) else ServiceState.ACTIVE
    return ServiceStatus(
        name=metadata["name"],
        revision=int(metadata["labels"][names.REVISION_LABEL]),
        digest=(metadata.get("annotations") or {}).get(names.DIGEST_ANNOTATION, ""),
        state=state,
        requested=deployment["spec"]["replicas"],
        replicas=tuple(_replica(pod, list(events), now) for pod in ordered),
        message=_refused(deployment),
    )


def _refused(deployment: Object) -> str | None:
    """Explain why the cluster creates no pods, such as a quota."""
    for condition in deployment.get("status", {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return f"the cluster refuses its replicas: {' '.join(condition['message'].split())}"
    return None


def _replica(pod: Object, events: Iterable[Object], now: float) -> ReplicaStatus:
    state, since = _state(pod, now)
    return ReplicaStatus(
        name=pod["metadata"]["name"],
        revision=int(pod["metadata"]["labels"][names.REVISION_LABEL]),
        state=state,
        addresses=_addresses(pod),
        restarts=_container(pod).get("restartCount", 0),
        message=_message(pod, state, events, now),
        since=since,
    )


def _state(pod: Object, now: float) -> tuple[ReplicaState, float]:
    """Return the state of a replica and the time since which it has it."""
    metadata, container = pod["metadata"], _container(pod)
    if _is_deleted(pod):
        grace_s = metadata.get("deletionGracePeriodSeconds") or 0
        deleted_at = pods.timestamp(metadata["deletionTimestamp"]) - grace_s
        return "lost" if pods.is_lost(pod, now) else "stopping", deleted_at
    ready = pods.condition(pod, "Ready")
    changed_at = pods.timestamp(ready["lastTransitionTime"]) if ready else pods.created(pod)
    if ready.get("status") == "True":
        return "ready", changed_at
    running = container.get("state", {}).get("running")
    if running is None:
        if ended := _last_end(pod):
            return "restarting", pods.timestamp(ended["finishedAt"])
        return "starting", pods.created(pod)
    started_at = pods.timestamp(running["startedAt"])
    # In the second of its start, it may also be about to be ready: better that for a moment than
    # a replica that is unready for good and is shown as starting.
    was_ready = container.get("started", False) and changed_at >= started_at
    return ("unready", changed_at) if was_ready else ("starting", started_at)


def _addresses(pod: Object) -> dict[str, str]:
    """Return the addresses of a replica's ports, and of those of its sidecar."""
    host = pod["status"].get("podIP")
    if not host:
        return {}
    shown = f"[{host}]" if ":" in host else host
    spec = pod["spec"]
    return {
        port["name"]: f"{shown}:{port['containerPort']}"
        for container in (*spec.get("initContainers", ()), *spec["containers"])
        for port in container.get("ports", ())
    }


def _message(pod: Object, state: ReplicaState, events: Iterable[Object], now: float) -> str | None:
    """Explain the last failure of a replica, or why it has not started."""
    ended = _last_end(pod)
    if state == "starting" and not ended:
        return pods.why(pod, now) or _sidecar_failure(pod)
    if state in {"stopping", "lost"}:
        return pods.disrupted(pod)
    if not ended:
        return _sidecar_failure(pod)
    if ended.get("reason") == "OOMKilled":
        return pods.out_of_memory(pod)
    return _hung(pod, ended, events) or _late(pod, ended) or _end(ended)


def _end(ended: Mapping[str, Any]) -> str:
    """Describe the end of a container with the last line of its output."""
    line = pods.last_line(ended)
    if ended.get("reason") in _NEVER_STARTED:
        return f"cannot start its container: {line or ended['reason']}"
    code = ended["exitCode"]
    how = describe_exit(128 - code if code > 128 else code)
    return how if line is None else f"{how}: {line}"


def _hung(pod: Object, ended: Mapping[str, Any], events: Iterable[Object]) -> str | None:
    """Explain the end of a container that its node killed for a hang, which only events tell."""
    probe = pod["spec"]["containers"][0].get("livenessProbe")
    if probe is None or ended["exitCode"] not in _KILLED:
        return None
    for event in events:
        about = event["involvedObject"]
        if (
            about.get("uid") == pod["metadata"]["uid"]
            and about.get("fieldPath") == f"spec.containers{{{names.REPLICA}}}"
            and "failed liveness probe" in event.get("message", "")
            and _fits(event, pods.timestamp(ended["finishedAt"]))
        ):
            seconds = (probe["failureThreshold"] - 1) * probe["periodSeconds"]
            silent_s = seconds + probe["timeoutSeconds"]
            return f"hung: no answer at {probe['httpGet']['path']} for {silent_s} s"
    return None


def _fits(event: Object, ended_at: float) -> bool:
    last = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    return last is not None and -_CLOCK_S <= ended_at - pods.timestamp(last) <= _KILL_S


def _late(pod: Object, ended: Mapping[str, Any]) -> str | None:
    """Explain the end of a container that its node killed because it was not ready in time.

    Events of these kills are often missing: nodes send few of them for one pod, and each failed
    check is one. So the time that the container ran decides.
    """
    probe = pod["spec"]["containers"][0].get("startupProbe")
    if probe is None or ended["exitCode"] not in _KILLED or not ended.get("startedAt"):
        return None
    allowed_s = (probe["failureThreshold"] - 1) * probe["periodSeconds"]
    ran_s = pods.timestamp(ended["finishedAt"]) - pods.timestamp(ended["startedAt"])
    if allowed_s - _CLOCK_S <= ran_s <= allowed_s + _KILL_S:
        return f"was not ready within {allowed_s} s"
    return None


def _sidecar_failure(pod: Object) -> str | None:
    """Explain why the sidecar of a replica does not run."""
    for container in pod["status"].get("initContainerStatuses") or ():
        if "running" in container.get("state", {}):
            continue
        if ended := _ended(container):
            return f"its sidecar {container['name']} {_end(ended)}"
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("message"):
            text = " ".join(waiting["message"].split())
            return f"its sidecar {container['name']} does not start: {text}"
    return None


def _container(pod: Object) -> Mapping[str, Any]:
    """Return the status of a replica's container; empty before its node knows the pod."""
    found: list[Mapping[str, Any]] = pod["status"].get("containerStatuses") or [{}]
    return found[0]


def _last_end(pod: Object) -> Mapping[str, Any]:
    """Return how a replica ended last; empty if it never did."""
    return _ended(_container(pod))


def _ended(container: Mapping[str, Any]) -> Mapping[str, Any]:
    for state in (container.get("state", {}), container.get("lastState", {})):
        if "terminated" in state:
            ended: Mapping[str, Any] = state["terminated"]
            return ended
    return {}


def _is_deleted(found: Object) -> bool:
    return "deletionTimestamp" in found["metadata"]
