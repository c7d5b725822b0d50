"""A fake cluster with Deployments: watches, and rolling updates of pods that are processes."""

from __future__ import annotations

import copy
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from tests.engines.kubernetes.fake_cluster import FakeCluster, Object, RefusedError
from tests.engines.kubernetes.fake_kubelet import PodThread

_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_WATCH_POLL_S = 0.5


@dataclass
class ServiceCluster(FakeCluster):
    """A fake cluster whose Deployments work.

    Attributes:
        history: All changes of objects, for watches: version, plural, kind of change, object.
        pods: Threads of the pods of Deployments.
        forgotten: Watches from older versions are refused.
        refusals: Answers to requests about a plural, or ``plural/name``: status and message.
        requests: Number of requests so far.
        lost: Pods on lost nodes, which stay when they are deleted.
    """

    history: list[tuple[int, str, str, Object]] = field(default_factory=list)
    pods: dict[str, PodThread] = field(default_factory=dict)
    forgotten: int = 0
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: int = 0
    lost: set[str] = field(default_factory=set)
    _watches: int = 0

    def __post_init__(self) -> None:
        self._changes = threading.Condition()
        super().__post_init__()

    def close(self) -> None:
        super().close()
        for pod in list(self.pods.values()):
            pod.kill()
        for pod in list(self.pods.values()):
            pod.join()

    def answer(self, method: str, path: str, body: Object) -> Object | Iterator[bytes]:
        self.requests += 1
        plural = urlsplit(path).path.partition("/namespaces/team/")[2]
        if refusal := self.refusals.get(plural):
            raise RefusedError(refusal[0], "Refused", refusal[1])
        answer = super().answer(method, path, body)
        if isinstance(answer, Iterator):
            return answer
        with self._lock:
            return copy.deepcopy(answer)

    def end_watches(self) -> None:
        """End all watches, as a server that stops."""
        with self._changes:
            self._watches += 1
            self._changes.notify_all()

    def change(self, name: str, status: Mapping[str, Any]) -> None:
        """Change the status of a pod, as its node does."""
        with self._lock:
            pod = self.objects.get(("pods", name))
            if pod is not None and pod["status"] != {**pod["status"], **status}:
                pod["status"] |= copy.deepcopy(dict(status))
                self._changed("MODIFIED", "pods", pod)

    def remove(self, name: str) -> None:
        """Remove a pod that has ended."""
        with self._lock:
            if name in self.lost:
                return
            pod = self.objects.pop(("pods", name), None)
            self.pods.pop(name, None)
            if pod is not None:
                self._changed("DELETED", "pods", pod)

    def report(self, pod: Object, container: str, reason: str, message: str) -> None:
        """Create an event about a container."""
        about = {
            "kind": "Pod",
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
            "fieldPath": f"spec.containers{{{container}}}",
        }
        event = {
            "metadata": {"name": f"{about['name']}.{uuid.uuid4().hex[:8]}"},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "lastTimestamp": stamp(),
        }
        with self._lock:
            self._create("events", event)

    def _changed(self, change: str, plural: str, found: Object) -> None:
        version = next(self._versions)
        found["metadata"]["resourceVersion"] = str(version)
        with self._changes:
            self.history.append((version, plural, change, copy.deepcopy(found)))
            self._changes.notify_all()

    def _create(self, plural: str, body: Object) -> Object:
        if plural == "deployments":
            _check_deployment(body)
        meta = {**body["metadata"], "creationTimestamp": stamp()}
        found = super()._create(plural, copy.deepcopy({**body, "metadata": meta}))
        self._changed("ADDED", plural, found)
        return found

    def _patch(self, found: Object, body: Object) -> Object:
        before = copy.deepcopy(found)
        super()._patch(found, body)
        if {**before, "metadata": None} == {**found, "metadata": None} and not body.get("metadata"):
            found["metadata"] = before["metadata"]  # the server writes nothing
        else:
            self._changed("MODIFIED", found["kind"], found)
        return found

    def _answer_list(self, plural: str, query: Mapping[str, str]) -> Object | Iterator[bytes]:
        if query.get("watch") == "true":
            version = int(query["resourceVersion"])
            if version < self.forgotten:
                raise RefusedError(410, "Expired", "too old resource version")
            return self._watch(plural, version, query)
        answer = super()._answer_list(plural, query)
        assert isinstance(answer, dict)
        answer["items"] = [each for each in answer["items"] if _selects(query, each)]
        return answer

    def _watch(self, plural: str, version: int, query: Mapping[str, str]) -> Iterator[bytes]:
        deadline = time.monotonic() + int(query["timeoutSeconds"])
        position, watches = 0, self._watches
        while time.monotonic() < deadline and not self._is_closed and watches == self._watches:
            with self._changes:
                if len(self.history) == position:
                    self._changes.wait(_WATCH_POLL_S)
                found, position = self.history[position:], len(self.history)
            for number, kind, change, each in found:
                if number > version and kind == plural and _selects(query, each):
                    yield json.dumps({"type": change, "object": each}).encode() + b"\n"

    def _answer_part(
        self,
        method: str,
        plural: str,
        name: str,
        subresource: str,
        query: Mapping[str, str],
        body: Object,
    ) -> Object | Iterator[bytes]:
        if (plural, name) not in self.objects:
            raise RefusedError(404, "NotFound", f'{plural} "{name}" not found')
        found = self.objects[plural, name]
        if (method, plural, subresource) == ("PATCH", "deployments", "scale"):
            if body["spec"].keys() != {"replicas"} or body["spec"]["replicas"] < 0:
                raise RefusedError(422, "Invalid", f"no such scale: {body}")
            self._patch(found, body)
            return {"kind": "Scale", "metadata": found["metadata"], "spec": body["spec"]}
        if (method, plural, subresource) == ("GET", "pods", "log"):
            return self.pods[name].log(query)
        return super()._answer_part(method, plural, name, subresource, query, body)

    def _answer_named(self, method: str, plural: str, name: str, body: Object) -> Object:
        if method == "PUT" and (plural, name) in self.objects:
            found = self.objects[plural, name]
            if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                raise RefusedError(409, "Conflict", "the object has been modified")
            _check_deployment(body)
            if body["spec"]["selector"] != found["spec"]["selector"]:
                raise RefusedError(422, "Invalid", "spec.selector: field is immutable")
            kept = {key: found["metadata"][key] for key in ("uid", "creationTimestamp")}
            found |= copy.deepcopy({**body, "metadata": {**body["metadata"], **kept}})
            self._changed("MODIFIED", plural, found)
            return found
        return super()._answer_named(method, plural, name, body)

    def _delete(self, plural: str, name: str, grace_s: int | None) -> Object:
        found = self.objects[plural, name]
        if plural == "deployments" and "deletionTimestamp" not in found["metadata"]:
            # In the foreground: it goes after its pods.
            found["metadata"] |= {"deletionTimestamp": stamp(), "deletionGracePeriodSeconds": 0}
            self._changed("MODIFIED", plural, found)
        elif plural == "pods" and grace_s == 0:
            self.lost.discard(name)
            self.pods[name].kill()
            del self.objects["pods", name]
            self._changed("DELETED", "pods", found)
        elif plural == "pods" and name in self.pods:
            self._stop(name)
        elif plural != "deployments":
            super()._delete(plural, name, grace_s)
            self._changed("DELETED", plural, found)
        return found

    def _stop(self, name: str) -> None:
        pod = self.objects["pods", name]
        if "deletionTimestamp" in pod["metadata"]:
            return
        grace_s = pod["spec"]["terminationGracePeriodSeconds"]
        end = datetime.fromtimestamp(time.time() + grace_s, UTC)
        pod["metadata"] |= {
            "deletionTimestamp": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "deletionGracePeriodSeconds": grace_s,
        }
        self._changed("MODIFIED", "pods", pod)
        self.pods[name].stop()

    def _reconcile(self, plural: str, name: str, found: Object) -> None:
        if plural != "deployments":
            super()._reconcile(plural, name, found)
        elif "deletionTimestamp" in found["metadata"]:
            self._remove_deployment(name, found)
        else:
            self._roll_out(name, found)

    def _remove_deployment(self, name: str, found: Object) -> None:
        pods = self._pods_of(found)
        for pod in pods:
            self._stop(pod["metadata"]["name"])
        if pods:
            return
        uid = found["metadata"]["uid"]
        for (kind, other), each in list(self.objects.items()):
            owners = each["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == uid for owner in owners):
                self._delete(kind, other, None)
        del self.objects["deployments", name]
        self._changed("DELETED", "deployments", found)

    def _pods_of(self, deployment: Object) -> list[Object]:
        uid = deployment["metadata"]["uid"]
        return [
            found
            for (plural, _), found in self.objects.items()
            if plural == "pods" and found["metadata"]["ownerReferences"][0]["uid"] == uid
        ]

    def _roll_out(self, name: str, deployment: Object) -> None:
        """Do a step of a rolling update: one pod more than requested, and none less."""
        spec = deployment["spec"]
        if spec.get("paused"):
            return
        running = [p for p in self._pods_of(deployment) if "deletionTimestamp" not in p["metadata"]]
        current = [pod for pod in running if pod["template"] == spec["template"]]
        old = [pod for pod in running if pod["template"] != spec["template"]]
        requested = spec["replicas"]
        most = requested + 1 if old else requested
        for _ in range(min(requested - len(current), most - len(running))):
            self._start_pod(name, deployment)
        for pod in sorted(current, key=_victim_order)[: max(0, len(current) - requested)]:
            self._stop(pod["metadata"]["name"])
        unready = [pod for pod in current if not _is_ready(pod)]
        excess = len(running) - requested - len(unready)
        broken = [pod for pod in old if not _is_ready(pod)][: max(0, excess)]
        spare = sum(map(_is_ready, running)) - requested
        good = [pod for pod in old if _is_ready(pod)][: max(0, min(spare, excess - len(broken)))]
        for pod in (*broken, *good):
            self._stop(pod["metadata"]["name"])

    def _start_pod(self, name: str, deployment: Object) -> None:
        template = deployment["spec"]["template"]
        pod_name = f"{name}-{uuid.uuid4().hex[:5]}"
        owner = {"kind": "ReplicaSet", "name": name, "uid": deployment["metadata"]["uid"]}
        meta = {**template["metadata"], "name": pod_name, "ownerReferences": [owner]}
        pod = self._create(
            "pods",
            {
                "metadata": meta,
                "spec": template["spec"],
                "template": template,
                "number": next(self._versions),
            },
        )
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        folder = self.root / "pods" / pod_name
        folder.mkdir(parents=True)
        self.pods[pod_name] = PodThread(self, copy.deepcopy(pod), folder, {**env, **self.env})
        self.pods[pod_name].start()


def stamp() -> str:
    """Return the time as objects have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _victim_order(pod: Object) -> tuple[bool, int]:
    """Order pods so that those that are not ready, and then the newest, come first."""
    return _is_ready(pod), -pod["number"]


def _selects(query: Mapping[str, str], found: Object) -> bool:
    labels = found["metadata"].get("labels") or {}
    for pair in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = pair.partition("=")
        if labels.get(key) != value:
            return False
    for pair in filter(None, query.get("fieldSelector", "").split(",")):
        key, _, value = pair.partition("=")
        part: Any = found
        for name in key.split("."):
            part = part.get(name, {})
        if part != value:
            return False
    return True


def _check_deployment(body: Object) -> None:
    """Refuse what an API server refuses, of what the engine could do wrong."""
    spec, template = body["spec"], body["spec"]["template"]
    problems = []
    if not spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items():
        problems.append("the selector does not match the template's labels")
    for labels in (body["metadata"]["labels"], template["metadata"]["labels"]):
        problems += [
            f"bad label: {value!r}"
            for value in labels.values()
            if len(value) > 63 or not _LABEL_VALUE.fullmatch(value)
        ]
    pod = template["spec"]
    if type(pod["terminationGracePeriodSeconds"]) is not int:
        problems.append("terminationGracePeriodSeconds is no integer")
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        for each in container["env"]:
            if "value" in each and type(each["value"]) is not str:
                problems.append(f"the variable {each['name']} is no text")
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            problems += [
                f"{name}.{key}: {value!r}"
                for key, value in container.get(name, {}).items()
                if key not in {"httpGet", "tcpSocket"} and (type(value) is not int or value < 1)
            ]
        if "terminationGracePeriodSeconds" in container.get("readinessProbe", {}):
            problems.append("a readiness probe ends nothing")
    if problems:
        raise RefusedError(422, "Invalid", "; ".join(problems))
