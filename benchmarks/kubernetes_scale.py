"""The coordinator of a large Kubernetes job: how long it takes, and what it needs.

Runs the code of the coordinator on this machine, without a cluster: its pods are connections of
this process, which answers as pods do and runs no tasks; the bucket and what the coordinator asks
of the API server are in memory. What cannot be measured here is in docs/design/kubernetes.md.

usage: kubernetes_scale.py [--pods 10 100 1000] [--output benchmarks/results/kubernetes_scale.md]
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import selectors
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import _measure
import psutil

from timonel.engines import JobSpec, JobStatus, RoleSpec
from timonel.engines.agent.messages import StartOrder, decode_order, encode
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.lifecycle import TaskExited, TaskReady, TaskStarted
from timonel.engines.environment import CLUSTER
from timonel.engines.kubernetes import names
from timonel.engines.kubernetes.api_thread import SeenCluster
from timonel.engines.kubernetes.coordinator import Coordinator
from timonel.engines.kubernetes.files.changes import Change, Part, encode_change
from timonel.engines.kubernetes.links import PING_S, Member
from timonel.processes.loop import Channel
from timonel.storage import find_workspace

HERE = Path(__file__).parent
JOB, TOKEN = "train-20261127-101336-9d71", "token"
RUN_S, FILE_BYTES = 10.0, 1024
KIB = 1 << 10
_WAIT_S = 0.002
_SETTING = (
    "The coordinator runs without a cluster: its pods are connections of another process, which "
    "run no tasks; the bucket and the API server are in memory. One round."
)
_COLUMNS = (
    "pods",
    "all told to start",
    "all told to start again after the end of a task",
    "a reported change of 1 KiB in all pods",
    "cores while tasks run",
    "peak memory",
    "status",
    "addresses",
)
_LIMITS = (
    "The status is in a ConfigMap, which may have 1 MiB. The addresses are in an environment "
    "variable of each task, which may have 128 KiB."
)


@dataclass(frozen=True)
class Figures:
    """Figures of one job.

    Attributes:
        pods: Number of its pods.
        start_s: From the first connection until the last pod has the order to start.
        restart_s: From the kill of a task until the last pod has the order to start again.
        change_s: From a changed file in one pod until the last pod has it.
        cores: Cores that the coordinator uses while tasks run.
        peak_mib: Its peak memory.
        status_kib: Status of the job, in a ConfigMap.
        cluster_kib: Addresses of all tasks, in an environment variable of each.
    """

    pods: int
    start_s: float
    restart_s: float
    change_s: float
    cores: float
    peak_mib: float
    status_kib: float
    cluster_kib: float


class Pods:
    """All pods of a job.

    Args:
        address: Where the coordinator listens.
        count: Their number.

    Attributes:
        ordered: Pods with an order to start.
        changed: Pods that have received a change.
    """

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self.ordered: dict[int, StartOrder] = {}
        self.changed: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._channels: list[Channel] = []
        self._begun, self._pings = time.monotonic(), 0
        for index in range(count):
            hostname = names.pod_hostname(JOB, "worker", index)
            member = Member(f"worker-{index}", names.address(JOB, hostname), f"{hostname}-abcde")
            channel = Channel(socket.create_connection(address))
            channel.send(member.join(TOKEN))
            self._channels.append(channel)
            self._selector.register(channel, selectors.EVENT_READ, index)

    def obey_until(self, is_done: Callable[[], bool]) -> float:
        """Do what the coordinator asks for; return the seconds until something is done."""
        begun = time.monotonic()
        while not is_done():
            self._ping()
            for key, _ in self._selector.select(_WAIT_S):
                for message in self._channels[key.data].receive():
                    self._obey(key.data, message)
        return time.monotonic() - begun

    def all_ordered(self) -> bool:
        """Whether all pods have an order to start."""
        return len(self.ordered) == len(self._channels)

    def change_file(self) -> None:
        """Tell the coordinator of a changed file in the first pod."""
        content = os.urandom(FILE_BYTES)
        part = Part(len(content), hashlib.sha256(content).hexdigest(), content)
        change = Change(f"runs/{JOB}/notes", (part,), author="pod", serial=1)
        self._channels[0].send({"kind": "changes", "changes": [encode_change(change)]})

    def exit(self, index: int, how: TaskExit) -> None:
        """End a task."""
        order = self.ordered.pop(index)
        exited = TaskExited(order.task_id, order.generation, how, order.attempt)
        self._channels[index].send(encode(exited))

    def _ping(self) -> None:
        """Send the pings that are due: those of pods come one after the other."""
        count = len(self._channels)
        while self._pings < (time.monotonic() - self._begun) / PING_S * count:
            self._channels[self._pings % count].send({"kind": "ping"})
            self._pings += 1

    def _obey(self, index: int, message: dict[str, Any]) -> None:
        if message["kind"] == "changes":
            self.changed.add(index)
        elif message["kind"] in {"StartOrder", "StopOrder"}:
            order = decode_order(message)
            if isinstance(order, StartOrder):
                self.ordered[index] = order
                task = order.task_id, order.generation
                self._channels[index].send(encode(TaskStarted(*task, 1, attempt=order.attempt)))
                self._channels[index].send(encode(TaskReady(*task, order.attempt)))
            elif index in self.ordered:
                self.exit(index, TaskExit(signal=15))
        elif message["kind"] == "bye":
            self._selector.unregister(self._channels[index])
            self._channels[index].close()


class Api:
    """What a coordinator asks of a cluster where nothing happens.

    Attributes:
        largest: Bytes of the largest status that was published.
    """

    def __init__(self) -> None:
        self.largest = 0
        self._wake = os.eventfd(0)

    def fileno(self) -> int:
        return self._wake

    def read(self) -> SeenCluster:
        return SeenCluster()

    def publish(self, status: JobStatus) -> None:
        self.largest = max(self.largest, len(status.model_dump_json()))

    def ignore(self, *_: object) -> None:
        pass

    check_lease = resize = expect = delete = keep = ignore


def coordinate(pods: int, output: Connection) -> None:
    """Run a job's coordinator; send its port, and at the end the size of its status."""
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        role = RoleSpec(name="worker", replicas=pods)
        spec = JobSpec(job_id=JOB, module="train", roles=(role,), folders=(f"runs/{JOB}",))
        api, listener = Api(), socket.create_server(("127.0.0.1", 0), backlog=1024)
        output.send(listener.getsockname())
        Coordinator(
            spec,
            JobStatus.of(spec, time.time()),
            workspace=find_workspace(f"memory://{uuid.uuid4().hex}"),
            api=cast("Any", api),
            listener=listener,
            token=TOKEN,
            work=Path(folder),
        ).run()
    output.send(api.largest)


@contextmanager
def running_coordinator(pods: int) -> Iterator[tuple[psutil.Process, Connection]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=coordinate, args=(pods, theirs))
    process.start()
    try:
        yield psutil.Process(process.pid), ours
        process.join()
    finally:
        process.kill()


def measure(count: int) -> Figures:
    """Start a job, change a file, let tasks run, kill one, and end the job."""
    with running_coordinator(count) as (process, output):
        address = output.recv()
        begun = time.monotonic()
        pods = Pods(address, count)
        pods.obey_until(pods.all_ordered)
        start_s = time.monotonic() - begun
        pods.obey_until(after(2.0))
        before = cpu_s(process)
        run_s = pods.obey_until(after(RUN_S))
        cores = (cpu_s(process) - before) / run_s
        pods.changed.clear()
        pods.change_file()
        change_s = pods.obey_until(lambda: len(pods.changed) == count)
        pods.exit(0, TaskExit(signal=9))
        restart_s = pods.obey_until(pods.all_ordered)
        cluster = len(pods.ordered[0].env[CLUSTER])
        peak = peak_mib(process)
        for index in range(count):
            pods.exit(index, TaskExit(exit_code=0))
        pods.obey_until(output.poll)
        status = output.recv()
    return Figures(count, start_s, restart_s, change_s, cores, peak, status / KIB, cluster / KIB)


def after(seconds: float) -> Callable[[], bool]:
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def peak_mib(process: psutil.Process) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / KIB


def page(all_figures: Sequence[Figures]) -> str:
    """Return the page of results."""
    rows = [
        f"| {each.pods:,} | {each.start_s * 1000:,.0f} ms | {each.restart_s * 1000:,.0f} ms "
        f"| {each.change_s * 1000:.0f} ms | {each.cores:.3f} | {each.peak_mib:.0f} MiB "
        f"| {each.status_kib:.0f} KiB | {each.cluster_kib:.0f} KiB |"
        for each in all_figures
    ]
    return "\n".join([
        "# The coordinator of a large job",
        "",
        f"Measured {time.strftime('%Y-%m-%d')} on {_measure.machine()}. {_SETTING}",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|" + "---|" * len(_COLUMNS),
        *rows,
        "",
        _LIMITS,
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--output", type=Path, default=HERE / "results" / "kubernetes_scale.md")
    options = parser.parse_args()
    text = page([measure(count) for count in options.pods])
    options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
