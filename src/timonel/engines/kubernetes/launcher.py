"""Start and stop the tasks of a job in pods that connect to the coordinator."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timonel.engines.agent.launcher import AgentLauncher, TaskStart
from timonel.engines.agent.messages import StartOrder, encode, start_order
from timonel.engines.cluster import encode as encode_assignment
from timonel.engines.coordination import lifecycle as on
from timonel.engines.coordination.elastic import resized
from timonel.engines.environment import CLUSTER
from timonel.engines.kubernetes.files.thread import FileThread
from timonel.engines.kubernetes.links import SILENT_S, Link, Member
from timonel.processes.loop import Channel

_FIRST_PORT, _PORTS = 20000, 10000
"""Ports of tasks. No task has an address of the generation before, also if the size changes."""
_BYE_S = 5.0
_POLL_S = 0.05
_ELASTIC_PATIENCE_S = 60.0
"""How long an elastic role waits for more pods than it needs."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Pod:
    """A connected pod.

    Attributes:
        link: Its connection.
        member: What it is, once it has joined.
        is_leaving: It is being deleted, and takes no further order.
    """

    link: Link
    member: Member | None = None
    is_leaving: bool = False


@dataclass(kw_only=True)
class KubernetesLauncher(AgentLauncher):
    """Carries out a coordinator's actions with one pod per task.

    A generation starts when the pods of all of its tasks have joined. Pods outlive generations.

    Attributes:
        token: What a pod must show.
        listener: Listening socket.
        files: Keeps the job's folder; orders are sent after the changes that precede them.
        welcome: Returns the welcome message for a joining pod; called in the thread of the files.
        take: Called with the task and each message of a pod about files and output.
        resize: Called with the number of pods by role, before a generation waits for them.
        discard_pod: Called with the name of a pod that was lost and does not join again, to delete
            it. Its task has stopped by then.
        keep_pod: Called with the name of a pod that has joined: it is not deleted.
    """

    token: str
    listener: socket.socket
    files: FileThread
    welcome: Callable[[], Mapping[str, Any]]
    take: Callable[[str, Mapping[str, Any]], None]
    resize: Callable[[Mapping[str, int]], None]
    discard_pod: Callable[[str], None]
    keep_pod: Callable[[str], None]
    _connected: list[_Pod] = field(default_factory=list)
    _waiting: tuple[on.StartGeneration, str | None] | None = None
    _waiting_since: float = 0.0
    _sizes: Mapping[str, int] = field(default_factory=dict)
    _lost: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Pods that were lost, by task, and when each must have joined again."""

    def __post_init__(self) -> None:
        self.loop.watch(self.listener.fileno(), self._accept)

    @property
    def joined(self) -> dict[str, Member]:
        """The pods that have joined, by task."""
        return {
            pod.member.task_id: pod.member
            for pod in self._connected
            if pod.member is not None and not pod.is_leaving
        }

    def missing(self) -> list[str]:
        """Return the tasks that wait for their pods."""
        joined = self.joined
        waiting = self._names() if self._waiting else ()
        in_place = [name for name, start in self.starts.items() if start.channel is None]
        return [name for name in (*waiting, *in_place) if name not in joined]

    def start(self, action: on.StartGeneration, reason: str | None) -> None:
        """Start a generation once all of its pods have joined."""
        self._waiting, self._sizes = (action, reason), action.sizes
        self._waiting_since = time.monotonic()
        self._assignments = {}
        self.resize(action.sizes)
        self._start_complete()

    def stop(self, action: on.StopTasks) -> None:
        """Ask tasks to exit."""
        self._waiting = None
        super().stop(action)

    def kill(self, action: on.KillTasks) -> None:
        """Disconnect from pods, which kill their tasks."""
        self._waiting = None
        super().kill(action)

    def reserve(self, task_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the addresses of tasks at their pods."""
        generation = self._waiting[0].generation if self._waiting else 0
        joined = self.joined
        first = generation * self.spec.size
        return {
            name: f"{joined[name].host}:{_FIRST_PORT + (first + number) % _PORTS}"
            for number, name in enumerate(task_ids)
        }

    def begin(self, start: TaskStart) -> None:
        """Give a task's pod the order; a pod that is not there gets it when it joins."""
        pod = self._pod_of(start.hello.task_id)
        if pod is not None and not pod.is_leaving:
            self.connect(start, pod.link)

    def order(self, start: TaskStart) -> StartOrder:
        """Return the order, in which the pod fills in its own folders."""
        role = next(r for r in self.spec.roles if r.name == start.assignment["task"]["type"])
        env = {**self.spec.env, **role.env, CLUSTER: encode_assignment(start.assignment)}
        own = Path()
        return start_order(
            self.spec, start.assignment, env=env, cwd=str(own), task_dir=own, log=own
        )

    def connect(self, start: TaskStart, channel: Channel) -> None:
        """Send the orders of a start to its pod, after the changes before it."""
        start.channel = channel
        self.files.then(lambda: self._send_orders(start, channel))

    def _send_orders(self, start: TaskStart, channel: Channel) -> None:
        channel.send(encode(self.order(start)))
        if start.stop is not None:
            channel.send(encode(start.stop))

    def exited(self, channel: Channel) -> None:
        """Keep the pod."""

    def disconnect(self, channel: Channel) -> None:
        """Close a pod's connection; it stops its task and joins again."""
        for pod in self._connected:
            if pod.link is channel and pod.member is not None and not pod.is_leaving:
                deadline = time.monotonic() + SILENT_S + self.spec.stop_grace_s
                self._lost[pod.member.task_id] = (pod.member.pod, deadline)
        self._connected = [pod for pod in self._connected if pod.link is not channel]
        super().disconnect(channel)

    def close(self) -> None:
        """Tell all pods that the job has ended, and remove those that are left."""
        self.loop.forget(self.listener.fileno())
        self.listener.close()
        for pod in self._connected:
            pod.link.send({"kind": "bye"})
        deadline = time.monotonic() + _BYE_S
        while any(pod.member for pod in self._connected) and time.monotonic() < deadline:
            self.loop.wait(_POLL_S)
        for pod in tuple(self._connected):
            self.disconnect(pod.link)
        # Pods that have not heard of the end, or have not started yet, would try to join forever.
        self.resize({role.name: 0 for role in self.spec.roles})

    def broadcast(self, message: Mapping[str, Any]) -> None:
        """Send a message to all pods that have joined."""
        for pod in self._connected:
            if pod.member is not None:
                pod.link.send(message)

    def check(self, describe: Callable[[str], str | None]) -> None:
        """Lose silent pods, and tell the coordinator what a generation waits for.

        Args:
            describe: Returns why the pod of a task is not there; None if it is about to be.
        """
        for pod in tuple(self._connected):
            if not pod.link.keep_alive():
                logger.warning("%s is silent", pod.member)
                self.lose(pod.link)
        self._discard_lost()
        if self._waiting is None:
            return
        missing, (action, _) = self.missing(), self._waiting
        if missing and self._can_do_without(missing):
            self.emit(on.TasksMissing(action.generation, tuple(missing)))
        elif missing:
            reasons = [f"{name} {why}" for name in missing if (why := describe(name))]
            message = f"waiting for {len(missing)} of {len(self._names())} pods"
            message += f": {reasons[0]}" if reasons else ""
            self.emit(on.TasksPending(action.generation, message))
        else:
            self._start_complete()

    def _discard_lost(self) -> None:
        """Delete pods that have not joined again: their nodes are lost, or they hang."""
        now = time.monotonic()
        for task_id, (pod, deadline) in tuple(self._lost.items()):
            if now > deadline:
                del self._lost[task_id]
                self.discard_pod(pod)

    def _can_do_without(self, missing: Sequence[str]) -> bool:
        """Whether an elastic job has waited long enough for tasks that it does not need."""
        if time.monotonic() - self._waiting_since < _ELASTIC_PATIENCE_S or self._waiting is None:
            return False
        sizes = self._waiting[0].sizes
        for role in self.spec.roles:
            lost = sum(name.rpartition("-")[0] == role.name for name in missing)
            if lost and sizes[role.name] - lost < role.least:
                return False
        return True

    def _names(self) -> list[str]:
        """Return the tasks of the latest generation; of all, before the first."""
        roles = resized(self.spec.roles, self._sizes) if self._sizes else self.spec.roles
        return [f"{role.name}-{index}" for role in roles for index in range(role.replicas)]

    def _start_complete(self) -> None:
        if self._waiting is None or self.missing():
            return
        action, reason = self._waiting
        self.emit(on.TasksPending(action.generation, reason))
        super().start(action, reason)
        self._waiting = None

    def _pod_of(self, task_id: str) -> _Pod | None:
        found = (pod for pod in self._connected if pod.member and pod.member.task_id == task_id)
        return next(found, None)

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return  # it hung up meanwhile
        link = Link(sock, lambda message: self._on_message(pod, message), is_trusted=False)
        pod = _Pod(link)
        self._connected.append(pod)
        self.watch(pod.link)

    def _on_message(self, pod: _Pod, message: Mapping[str, Any]) -> None:
        if not pod.link.is_trusted:
            self._join(pod, message)
        elif message["kind"] == "leaving":
            logger.info("%s is leaving", pod.member.pod if pod.member else "a pod")
            pod.is_leaving = True
        elif pod.member is not None:
            self.take(pod.member.task_id, message)

    def _join(self, pod: _Pod, message: Mapping[str, Any]) -> None:
        member = Member.of(message, self.token)
        if member is None:
            logger.warning("refused a pod that does not belong to the job")
            self.disconnect(pod.link)
            return
        pod.link.is_trusted = True
        # It gets the index, and all changes after it.
        self.files.ask(self.welcome, lambda body: self._welcome(pod, member, body))

    def _welcome(self, pod: _Pod, member: Member, body: Mapping[str, Any]) -> None:
        if not pod.link.is_open:
            return
        before = self._pod_of(member.task_id)
        if before is not None:
            self.lose(before.link)  # it was replaced or connected again
        pod.member = member
        self._lost.pop(member.task_id, None)
        self.keep_pod(member.pod)
        logger.info("%s has joined as %s", member.pod, member.task_id)
        pod.link.send({"kind": "welcome", **body})
        start = self.starts.get(member.task_id)
        if start is not None and start.channel is None:
            self.connect(start, pod.link)
        self._start_complete()
