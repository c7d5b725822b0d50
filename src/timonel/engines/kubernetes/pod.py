"""A pod of a job's role: ``python -m timonel.engines.kubernetes.pod JOB WORKSPACE``.

It runs one task after another through an ordinary agent, as the coordinator orders, and stays until
the job has ended. Beside that it keeps the job's folder the same as everybody's, passes on the
task's output, and stops the task when the coordinator is silent or the pod is being deleted.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from timonel.engines.agent.messages import (
    AgentEvent,
    StartOrder,
    StopOrder,
    decode_event,
    decode_order,
    encode,
)
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.lifecycle import StartFailed, TaskExited
from timonel.engines.environment import JOB_DIR
from timonel.engines.kubernetes.files.changes import (
    Change,
    decode_change,
    decode_index,
    encode_change,
)
from timonel.engines.kubernetes.files.folder import SharedFolder
from timonel.engines.kubernetes.files.thread import FileThread
from timonel.engines.kubernetes.job_store import read_spec, shared_folder
from timonel.engines.kubernetes.links import Link, Member, parse_address
from timonel.engines.kubernetes.names import EXIT_REFUSED
from timonel.engines.kubernetes.variables import (
    COORDINATOR,
    INDEX,
    POD_HOST,
    POD_NAME,
    ROLE,
    TOKEN,
    work_dir,
)
from timonel.engines.logs import LogTail
from timonel.engines.source import unpack
from timonel.engines.spec import JobSpec
from timonel.errors import FormatError, NotFoundError
from timonel.logs import configure_logging
from timonel.processes.backoff import backoff_s
from timonel.processes.loop import Channel, Loop
from timonel.processes.tree import TASK_DIR, adopt_orphans, reap
from timonel.processes.zygote import zygote_environment
from timonel.storage import Workspace, find_workspace

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_TICK_S = 0.25
_CONNECT_S = 5.0
_LONGEST_WAIT_S = 2.0
_LAST_S = 5.0
"""How long the last messages may take once the task has ended in a pod that is deleted."""
_LINES_AT_ONCE = 500
_SECRET = frozenset({TOKEN})
_EXIT_DELETED = 128 + signal.SIGTERM

logger = logging.getLogger(__name__)


@dataclass
class _Task:
    """The task that the agent runs.

    Attributes:
        order: Its start order.
        is_stopping: Whether it was asked to exit.
    """

    order: StartOrder
    is_stopping: bool = False


class Pod:
    """Runs the orders of a job's coordinator.

    Args:
        workspace: The workspace, of which this pod has a local copy.
        folder: The job's folder.
        token: What shows that this pod belongs to the job.
    """

    def __init__(
        self,
        *,
        member: Member,
        workspace: Workspace,
        spec: JobSpec,
        folder: SharedFolder,
        coordinator: tuple[str, int],
        token: str,
        work: Path,
    ) -> None:
        self._member = member
        self._workspace = workspace
        self._job_id = spec.job_id
        self._coordinator = coordinator
        self._token = token
        self._work = work
        self._loop = Loop(_SIGNALS)
        self._files = FileThread(folder, self._send_changes)
        self._link: Link | None = None
        self._has_joined = False  # over the present connection
        self._grace_s = 0.0
        self._log = work / "logs" / f"{member.task_id}.log"
        self._output = LogTail(member.task_id, self._log, only_new=True)
        self._queued: StartOrder | None = None
        self._task: _Task | None = None
        self._is_over = False
        self._is_leaving = False
        self._agent = self._start_agent(spec)

    def run(self) -> bool:
        """Run until the pod is deleted or the job has ended; return whether it has."""
        self._files.start()
        self._loop.watch(self._files.fileno(), self._files.deliver)
        attempt, connect_at = 0, 0.0
        while not (self._is_over or (self._is_leaving and self._task is None)):
            now = time.monotonic()
            if self._link is None and self._task is None and now >= connect_at:
                attempt = 0 if self._connect() else attempt + 1
                connect_at = now + backoff_s(attempt + 1, 0.2, _LONGEST_WAIT_S)
            signals = self._loop.wait(_TICK_S)
            if signal.SIGCHLD in signals:
                self._reap()
            if signal.SIGTERM in signals or signal.SIGINT in signals:
                self._leave()
            self._send_output()
            if not self._is_over:
                self._check_link()
        self._finish()
        return self._is_over

    def _check_link(self) -> None:
        if self._link is not None and not (self._link.is_open and self._link.keep_alive()):
            self._lose_coordinator()

    def _connect(self) -> bool:
        try:
            sock = socket.create_connection(self._coordinator, _CONNECT_S)
        except OSError as error:
            logger.info("cannot reach the coordinator: %s", error)
            return False
        link = Link(sock, self._take)
        self._link, self._has_joined = link, False
        self._loop.watch_channel(link, lambda: self._obey(link))
        link.send(self._member.join(self._token))
        return True

    def _obey(self, link: Link) -> None:
        for order in map(decode_order, link.receive()):
            if isinstance(order, StopOrder):
                self._stop(order)
            else:
                # Once the changes that were sent before the order are here.
                self._queued = order
                self._files.then(functools.partial(self._start, order))

    def _take(self, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "welcome":
                self._has_joined = True
                self._grace_s = float(message["grace_s"])
                self._files.reset(decode_index(message["index"]))
                self._send_output(to_end=True)  # of a task that ended without a coordinator
            case "changes":
                self._files.apply([decode_change(change) for change in message["changes"]])
            case "bye":
                self._is_over = True

    def _start(self, order: StartOrder) -> None:
        if self._queued is not order:
            return  # it was stopped, or the coordinator was lost meanwhile
        self._queued = None
        task_dir = self._work / "tasks" / order.task_id
        job_dir = self._workspace.jobs / self._job_id
        job_dir.mkdir(parents=True, exist_ok=True)
        folders = {JOB_DIR: str(job_dir), TASK_DIR: str(task_dir)}
        order = replace(
            order,
            env={**_own_environment(), **order.env, **folders},
            cwd=str(self._work / "source"),
            task_dir=task_dir,
            log=self._log,
        )
        self._task = _Task(order)
        self._agent.send(encode(order))

    def _stop(self, order: StopOrder) -> None:
        queued = self._queued
        if queued is not None and (queued.generation, queued.attempt) == (
            order.generation,
            order.attempt,
        ):
            # The agent does not know the task yet, and would ignore the order.
            self._queued = None
            never_started = TaskExit(agent_lost=True)
            event = TaskExited(queued.task_id, queued.generation, never_started, queued.attempt)
            self._send(encode(event))
            return
        if self._task is not None:
            self._task.is_stopping = True
        self._agent.send(encode(order))

    def _stop_task(self) -> None:
        """Stop the task without an order."""
        task = self._task
        if task is not None and not task.is_stopping:
            start = task.order
            self._stop(StopOrder(start.generation, start.attempt, self._grace_s))

    def _on_agent(self) -> None:
        for event in map(decode_event, self._agent.receive()):
            if not isinstance(event, TaskExited | StartFailed):
                self._send(encode(event))
                continue
            # What the task wrote is known to everybody before its end is.
            self._files.scan()
            self._files.then(functools.partial(self._end_task, event))
        if not self._agent.is_open:
            raise SystemExit("the agent has died")

    def _end_task(self, event: AgentEvent) -> None:
        self._send_output(to_end=True)
        self._task = None
        self._send(encode(event))

    def _send_output(self, *, to_end: bool = False) -> None:
        if self._link is None or not (self._link.is_open and self._has_joined):
            return  # the next coordinator gets it
        lines = [line.text for line in self._output.read(to_end=to_end)]
        task_id = self._member.task_id
        for start in range(0, len(lines), _LINES_AT_ONCE):
            chunk = lines[start : start + _LINES_AT_ONCE]
            self._send({"kind": "output", "task_id": task_id, "lines": chunk})

    def _send_changes(self, changes: list[Change]) -> None:
        # Others are sent when the pod has joined again.
        if self._has_joined:
            encoded = [encode_change(change) for change in changes]
            self._send({"kind": "changes", "changes": encoded})

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._link is not None:
            self._link.send(message)

    def _lose_coordinator(self) -> None:
        logger.warning("the coordinator is lost")
        self._disconnect()
        self._stop_task()

    def _disconnect(self) -> None:
        if self._link is not None:
            self._loop.forget(self._link)
            self._link.close()
            self._link, self._has_joined, self._queued = None, False, None

    def _leave(self) -> None:
        self._is_leaving = True
        self._send({"kind": "leaving"})
        self._stop_task()

    def _finish(self) -> None:
        """Send what is left, and end the agent."""
        deadline = time.monotonic() + _LAST_S
        while self._link is not None and self._link.wants_write and time.monotonic() < deadline:
            self._loop.wait(_TICK_S)
        self._disconnect()
        self._loop.forget(self._agent)
        self._agent.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent_process.wait(_LAST_S)

    def _start_agent(self, spec: JobSpec) -> Channel:
        """Start the agent, which imports what tasks share while the pod joins."""
        own_end, agent_end = socket.socketpair()
        # Not forked: this process has threads.
        number, modules = str(agent_end.fileno()), spec.preload
        command = [sys.executable, "-m", "timonel.engines.agent", number, *modules]
        name = self._member.task_id.rpartition("-")[0]
        role = next(each for each in spec.roles if each.name == name)
        env = {**_own_environment(), **spec.env, **role.env}
        self._agent_process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[agent_end.fileno()],
            # It comes first on the import path, so no module may be there.
            cwd=self._work / "agent",
            env=zygote_environment(env) if modules else None,
        )
        agent_end.close()
        channel = Channel(own_end)
        self._loop.watch_channel(channel, self._on_agent)
        return channel

    def _reap(self) -> None:
        # As the first process of a container, this one gets the orphans of all others.
        for pid, _ in reap():
            if pid == self._agent_process.pid:
                raise SystemExit("the agent has died")


def _own_environment() -> dict[str, str]:
    """Return what tasks inherit of this process's environment."""
    own = {name: value for name, value in os.environ.items() if name not in _SECRET}
    return {"PYTHONUNBUFFERED": "1", **own}


def main(arguments: list[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the pod that the environment describes; return its exit code."""
    configure_logging()
    job_id, uri = arguments
    adopt_orphans()
    work = work_dir(environ)
    try:
        workspace = find_workspace(uri, create=False)
        spec = read_spec(workspace, job_id)
        if spec.source is not None:
            unpack(spec.source, work / "source")
    except (NotFoundError, FormatError) as error:
        logger.error("%s", error)  # noqa: TRY400 - a line without traceback
        return EXIT_REFUSED
    for name in ("source", "agent"):
        (work / name).mkdir(parents=True, exist_ok=True)
    pod = Pod(
        member=Member(f"{environ[ROLE]}-{environ[INDEX]}", environ[POD_HOST], environ[POD_NAME]),
        workspace=workspace,
        spec=spec,
        folder=shared_folder(workspace, spec),
        coordinator=parse_address(environ[COORDINATOR]),
        token=environ[TOKEN],
        work=work,
    )
    # A pod that ends with 0 is not replaced.
    return 0 if pod.run() else _EXIT_DELETED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
