"""The process in a pod, whose coordinator is a thread of the test."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.engines.harness import DEADLINE_S
from tests.engines.kubernetes.shared import FOLDERS
from tests.engines.kubernetes.specs import spec
from timonel.engines import RoleSpec
from timonel.engines.agent.messages import StartOrder, StopOrder, encode
from timonel.engines.kubernetes import pod as module
from timonel.engines.kubernetes.files.changes import Index, encode_index
from timonel.engines.kubernetes.files.folder import SharedFolder
from timonel.engines.kubernetes.links import Member
from timonel.engines.kubernetes.pod import Pod
from timonel.storage import find_workspace
from timonel.storage.object_store import ObjectStore

pytestmark = [pytest.mark.process, pytest.mark.enable_socket]

Message = dict[str, Any]


class FakeCoordinator:
    """A coordinator's end of one connection after another."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(DEADLINE_S)

    def welcome(self) -> None:
        """Accept the pod's next connection, and welcome it."""
        self.sock, _ = self.listener.accept()
        self.sock.settimeout(DEADLINE_S)
        self.lines = self.sock.makefile("rb")
        assert self.next("join")["task_id"] == "worker-0"
        self.send({"kind": "welcome", "index": encode_index(Index()), "grace_s": 20.0})

    def send(self, *messages: Message) -> None:
        """Send messages at once."""
        self.sock.sendall(b"".join(json.dumps(each).encode() + b"\n" for each in messages))

    def next(self, *kinds: str) -> Message:
        """Return the next message of these kinds."""
        for line in self.lines:
            message: Message = json.loads(line)
            if message["kind"] in kinds:
                return message
        raise AssertionError("the pod has hung up")

    def await_line(self, part: str) -> None:
        """Wait for a line of the task's output."""
        while not any(part in line for line in self.next("output")["lines"]):
            pass

    def die(self) -> None:
        """Close the connection."""
        self.lines.close()
        self.sock.close()


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    coordinator = FakeCoordinator()
    yield coordinator
    coordinator.die()
    coordinator.listener.close()


@pytest.fixture
def run(
    coordinator: FakeCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Runs a pod until the coordinator has said so, which does its part meanwhile."""
    monkeypatch.setattr(module, "_SIGNALS", ())
    work = tmp_path / "work"
    for name in ("source", "agent"):
        (work / name).mkdir(parents=True)
    workspace = find_workspace(tmp_path / "workspace")
    store = ObjectStore(f"memory://{uuid.uuid4().hex}", patience_s=0.0)
    pod = Pod(
        member=Member("worker-0", "host", "one-worker-0-abcde"),
        workspace=workspace,
        spec=spec(RoleSpec(name="worker"), job_id="one"),
        folder=SharedFolder(workspace.root, FOLDERS, store, "one"),
        coordinator=coordinator.listener.getsockname(),
        token="secret",
        work=work,
    )

    def run(script: Callable[[], None]) -> None:
        def play() -> None:
            try:
                script()
            finally:
                coordinator.send({"kind": "bye"})

        with ThreadPoolExecutor(1) as pool:
            played = pool.submit(play)
            assert pod.run()
        played.result()

    yield run
    pod._files.close()
    pod._loop.close()


def start_order(*steps: str, generation: int = 2) -> Message:
    order = StartOrder(
        task_id="worker-0",
        generation=generation,
        attempt=1,
        module="tests.contracts.engine_tasks",
        args=steps,
        env={},
        cwd="",
        log=Path(),
        task_dir=Path(),
        umask=0o22,
    )
    return encode(order)


def test_a_task_that_is_stopped_before_it_starts_never_runs(
    coordinator: FakeCoordinator, run: Callable[[Callable[[], None]], None]
) -> None:
    seen: list[Message] = []

    def script() -> None:
        coordinator.welcome()
        coordinator.send(start_order("ready", "wait"), encode(StopOrder(2, 1, 20.0)))
        seen.append(coordinator.next("TaskStarted", "TaskExited"))
        coordinator.send(start_order("print:next", generation=3))
        seen.append(coordinator.next("TaskStarted"))
        coordinator.next("TaskExited")

    run(script)
    first, second = seen
    assert (first["kind"], first["generation"], first["attempt"]) == ("TaskExited", 2, 1)
    assert first["exit"]["agent_lost"]
    assert second["generation"] == 3


def test_the_next_coordinator_gets_the_output_since_the_last_one_died(
    coordinator: FakeCoordinator, run: Callable[[Callable[[], None]], None]
) -> None:
    def script() -> None:
        coordinator.welcome()
        coordinator.send(start_order("count-terms", "print:first", "report-terms"))
        coordinator.await_line("first")
        coordinator.die()
        coordinator.welcome()
        coordinator.await_line("asked to leave 1 times")

    run(script)
