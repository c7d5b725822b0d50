"""The coordinator of a job, in the process of the test, without a cluster."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.engines.kubernetes.memory_api import MemoryApi
from tests.engines.kubernetes.specs import spec
from timonel.engines import JobStatus
from timonel.engines.kubernetes import coordinator as module
from timonel.engines.kubernetes import coordinator_start
from timonel.engines.kubernetes.api_thread import SeenCluster
from timonel.engines.kubernetes.coordinator import Coordinator, PodDeleted
from timonel.engines.kubernetes.files import thread
from timonel.engines.kubernetes.job_log import LogReader
from timonel.engines.kubernetes.job_store import bucket_of
from timonel.engines.kubernetes.names import STATUS_KEY
from timonel.errors import InputError
from timonel.processes.loop import Loop
from timonel.storage import Workspace, find_workspace
from timonel.storage.bucket_errors import UnavailableError

pytestmark = pytest.mark.enable_socket

_JOB = spec(job_id="one", folders=("runs/one",))


class QuietApi:
    """What a coordinator asks of a cluster that answers nothing.

    Attributes:
        on_check: Called whenever the coordinator waits.
        published: Statuses, in order.
    """

    def __init__(self) -> None:
        self.on_check: Callable[[], None] = lambda: None
        self.published: list[JobStatus] = []
        self._wake = os.eventfd(0)

    def fileno(self) -> int:
        return self._wake

    def read(self) -> SeenCluster:
        return SeenCluster()

    def check_lease(self) -> None:
        self.on_check()

    def publish(self, status: JobStatus) -> None:
        self.published.append(status)

    def ignore(self, *_: object) -> None:
        pass

    resize = expect = delete = keep = ignore


class SignalledLoop(Loop):
    """A loop without signals of the process.

    Attributes:
        signals: Signals that the next call of `wait` returns.
    """

    def __init__(self, _: object) -> None:
        super().__init__(())
        self.signals: list[int] = []

    def wait(self, timeout_s: float | None) -> list[int]:
        super().wait(timeout_s)
        signals, self.signals = self.signals, []
        return signals


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return find_workspace(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def api() -> QuietApi:
    return QuietApi()


@pytest.fixture
def coordinator(
    workspace: Workspace, api: QuietApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Coordinator]:
    monkeypatch.setattr(module, "Loop", SignalledLoop)
    monkeypatch.setattr(thread, "_RETRY_S", 0.01)
    listener = socket.create_server(("127.0.0.1", 0))
    coordinator = Coordinator(
        _JOB,
        JobStatus.of(_JOB, 1.0),
        workspace=workspace,
        api=cast("Any", api),
        listener=listener,
        token="secret",
        work=tmp_path / "work",
    )
    yield coordinator
    coordinator._files.close()
    coordinator._loop.close()
    listener.close()
    os.close(api.fileno())


def terminate(coordinator: Coordinator) -> None:
    cast("SignalledLoop", coordinator._loop).signals.append(module.signal.SIGTERM)


def test_the_last_output_is_in_the_bucket_when_a_coordinator_is_replaced(
    coordinator: Coordinator, api: QuietApi, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SAVE_S", 1000.0)

    def on_check() -> None:
        if api.published and api.published[-1].message:  # it waits for its pods
            api.on_check = lambda: None
            coordinator._take("worker-0", {"kind": "output", "lines": ["saved step 7"]})
            terminate(coordinator)

    api.on_check = on_check
    with pytest.raises(PodDeleted):
        coordinator.run()
    lines = LogReader(bucket_of(workspace).store, "one").read()
    assert [line.text for line in lines] == ["saved step 7"]


def test_the_events_of_a_run_are_read_again_after_an_error(
    coordinator: Coordinator, api: QuietApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = []

    def pull(name: str) -> None:
        pulled.append(name)
        if len(pulled) < 3:
            raise UnavailableError("the server does not answer")

    monkeypatch.setattr(coordinator._bucket.runs, "pull", pull)
    api.on_check = lambda: terminate(coordinator) if api.published else None
    with pytest.raises(PodDeleted):
        coordinator.run()
    assert pulled == ["one"] * 3


def test_a_coordinator_shows_what_it_waits_for(
    coordinator: Coordinator, api: QuietApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "_SHOWN_AFTER_S", 0.05)
    is_away = True

    def save() -> None:
        if is_away:
            raise InputError("cannot write s3://bucket: access denied")

    def on_check() -> None:
        nonlocal is_away
        if is_away and api.published:
            is_away = False
        elif not is_away and "access denied" not in (api.published[-1].message or ""):
            terminate(coordinator)

    monkeypatch.setattr(coordinator, "_save", save)
    api.on_check = on_check
    with pytest.raises(PodDeleted):
        coordinator.run()
    first, last = api.published[0], api.published[-1]
    assert first.message == "waiting to transfer files: cannot write s3://bucket: access denied"
    assert last.message != first.message


def test_a_bucket_that_is_away_at_the_start_is_tried_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_spec(*_: object) -> None:
        raise UnavailableError("the server does not answer")

    monkeypatch.setattr(coordinator_start, "read_spec", read_spec)
    api = MemoryApi()
    content = {STATUS_KEY: JobStatus.of(_JOB, 1.0).model_dump_json()}
    api.objects["ConfigMap", "one"] = {"metadata": {}, "data": dict(content)}
    with pytest.raises(UnavailableError):
        coordinator_start.read_start(api, "one", workspace.uri)
    assert api.objects["ConfigMap", "one"]["data"] == content
