"""Messages between an agent and its controller: orders, and events of the task.

The controller is a job's supervisor or a command that runs a single task. Messages are JSON objects
over a socket pair, see `timonel.processes.loop.Channel`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from timonel.engines.cluster import TaskAssignment
from timonel.engines.coordination.lifecycle import StartFailed, TaskExited, TaskReady, TaskStarted
from timonel.engines.spec import JobSpec, hang_timeout_s


@dataclass(frozen=True)
class Hello:
    """First message of an agent that connects to its controller: the start that it is for."""

    task_id: str
    generation: int
    attempt: int


@dataclass(frozen=True)
class StartOrder:
    """Start the task's process ``python -m <module> <args>``.

    Attributes:
        task_id: Task ID.
        generation: Generation of the job.
        attempt: Attempt of the task within the generation, counting from 1.
        module: Module to run.
        args: Its arguments.
        env: Complete environment.
        cwd: Working folder.
        log: File to which the output is appended.
        task_dir: Folder for files shared by task and agent, such as the task's report.
        umask: File mode creation mask.
        hang_timeout_s: Maximum seconds without a heartbeat once ready; None: unlimited.
        stall_timeout_s: Maximum seconds without a step once ready; None: unlimited.
    """

    task_id: str
    generation: int
    attempt: int
    module: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    log: Path
    task_dir: Path
    umask: int
    hang_timeout_s: float | None = None
    stall_timeout_s: float | None = None


@dataclass(frozen=True)
class StopOrder:
    """Send SIGTERM to the task's process, and SIGKILL later.

    Ignored unless the task of this generation and attempt is running.

    Attributes:
        generation: Generation of the job.
        attempt: Attempt of the task.
        grace_s: Seconds from SIGTERM to SIGKILL.
        urgent: Whether a peer was lost: sends a second SIGTERM soon after the first, and kills a
            hung task at once.
    """

    generation: int
    attempt: int
    grace_s: float
    urgent: bool = False


AgentOrder = StartOrder | StopOrder
AgentEvent = Hello | TaskStarted | TaskReady | TaskExited | StartFailed

_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind)
    for kind in (Hello, StartOrder, StopOrder, TaskStarted, TaskReady, TaskExited, StartFailed)
}
_KINDS = {kind.__name__: kind for kind in _ADAPTERS}


def start_order(
    spec: JobSpec,
    assignment: TaskAssignment,
    *,
    env: Mapping[str, str],
    cwd: str,
    task_dir: Path,
    log: Path,
) -> StartOrder:
    """Return the order to start a task with this process's umask.

    Args:
        assignment: The task's place in the cluster.
        log: File for the task's output.
    """
    umask = os.umask(0)
    os.umask(umask)
    task = assignment["task"]
    role = next(role for role in spec.roles if role.name == task["type"])
    return StartOrder(
        task_id=f"{task['type']}-{task['index']}",
        generation=assignment["generation"],
        attempt=assignment["attempt"],
        module=spec.module,
        args=spec.args,
        env=env,
        cwd=cwd,
        log=log,
        task_dir=task_dir,
        umask=umask,
        hang_timeout_s=hang_timeout_s(spec, role),
        stall_timeout_s=spec.stall_timeout_s,
    )


def encode(message: AgentOrder | AgentEvent) -> dict[str, Any]:
    """Return a message as a JSON object."""
    kind = type(message)
    body: dict[str, Any] = _ADAPTERS[kind].dump_python(message, mode="json")
    return {"kind": kind.__name__, **body}


def decode_order(body: Mapping[str, Any]) -> AgentOrder:
    """Parse an order, on the agent's side."""
    order: AgentOrder = _decode(body)
    return order


def decode_event(body: Mapping[str, Any]) -> AgentEvent:
    """Parse an event of an agent, on the controller's side."""
    event: AgentEvent = _decode(body)
    return event


def _decode(body: Mapping[str, Any]) -> Any:
    fields = dict(body)
    return _ADAPTERS[_KINDS[fields.pop("kind")]].validate_python(fields)
