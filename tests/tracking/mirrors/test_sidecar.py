from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contracts.mirrors import MemoryMirror, assert_same
from timonel.storage import Workspace, exclusive
from timonel.tracking import read_run, start_run
from timonel.tracking.mirrors import known_mirrors, sidecar
from timonel.tracking.mirrors.sidecar import LOCK, LOG

PLUGINS = Path(__file__).parents[2] / "plugins"


class Steps:
    """A clock whose waits run what the test has planned, one step each."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.waits: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.steps.pop(0)()


def nothing() -> None:
    pass


def test_following_ends_once_the_end_is_mirrored(workspace: Workspace) -> None:
    run = start_run(workspace, "train", job_id="job")
    mirror = MemoryMirror(workspace, {})
    clock = Steps(
        nothing,
        lambda: run.metrics({"loss": 1.0}, step=1),
        lambda: run.metrics({"loss": 0.5}, step=2),
        *[nothing] * 4,
        # It is not waited for the rest of the interval.
        lambda: run.finish("succeeded"),
    )
    (fed,) = sidecar.follow(
        workspace, run.run_id, [mirror], stop=lambda: False, wait=clock.wait, interval_s=1.0
    )
    assert fed.is_complete
    assert not clock.steps
    assert_same(mirror.store[run.run_id], read_run(workspace))


def test_a_job_that_reports_nothing_is_followed_all_the_same(workspace: Workspace) -> None:
    run = start_run(workspace, "train", job_id="job")
    mirror = MemoryMirror(workspace, {})
    clock = Steps(*[nothing] * 80, lambda: run.finish("failed"))
    sidecar.follow(workspace, run.run_id, [mirror], stop=lambda: False, wait=clock.wait)
    assert sum(clock.waits) == 20.25
    assert mirror.store[run.run_id].status == "failed"


def test_a_mirror_that_stays_away_is_given_up_after_the_end(workspace: Workspace) -> None:
    with start_run(workspace, "train") as run:
        pass
    mirror = MemoryMirror(workspace, {})
    mirror.fail_after = 0
    clock = Steps(*[nothing] * 8)
    (fed,) = sidecar.follow(
        workspace, run.run_id, [mirror], stop=lambda: False, wait=clock.wait, interval_s=1.0
    )
    assert fed.error is not None
    assert not clock.steps


def test_a_stop_mirrors_what_is_there(workspace: Workspace) -> None:
    run = start_run(workspace, "train", job_id="job")
    run.metrics({"loss": 1.0}, step=1)
    mirror = MemoryMirror(workspace, {})
    sidecar.follow(workspace, run.run_id, [mirror], stop=lambda: True, wait=pytest.fail)
    assert mirror.store[run.run_id].series == {"loss": [(1, 1.0)]}


@pytest.fixture
def program(workspace: Workspace, tmp_path: Path) -> list[str]:
    """The sidecar's command, with a mirror of this test's instead of slower ones."""
    script = tmp_path / "sidecar.py"
    script.write_text(
        "import json, sys\n"
        "from tests.contracts.mirrors import MemoryMirror\n"
        "from timonel.tracking.mirrors import sidecar\n"
        "class FileMirror(MemoryMirror):\n"
        "    def __init__(self, workspace):\n"
        "        super().__init__(workspace, {})\n"
        "    def events(self, batch):\n"
        "        with (self.workspace.root / 'mirrored').open('a') as file:\n"
        "            file.writelines(event['type'] + '\\n' for event in batch)\n"
        "sidecar.installed_mirrors = lambda workspace: [FileMirror(workspace)]\n"
        "sys.exit(sidecar.main())\n"
    )
    return [sys.executable, str(script), str(workspace.root)]


def mirrored(workspace: Workspace, count: int) -> list[str]:
    """Wait for so many events to be mirrored."""
    path = workspace.root / "mirrored"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= count:
            return lines
        time.sleep(0.05)
    raise AssertionError(f"expected {count} events, got {lines}")


@pytest.mark.process
def test_the_process_is_nice_and_ends_with_the_run(
    workspace: Workspace, program: list[str]
) -> None:
    with start_run(workspace, "convert") as earlier:
        pass
    run = start_run(workspace, "train", job_id="job")
    run.metrics({"loss": 1.0}, step=1)
    process = subprocess.Popen([*program, run.run_id, "--interval", "0.05"])
    mirrored(workspace, 1)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    run.finish("succeeded")
    assert process.wait(30) == 0
    # The last one belongs to the run before, which had no process of its own.
    assert mirrored(workspace, 3) == ["metrics", "finish", "finish"]
    assert (earlier.folder / "mirrors" / "memory.json").exists()


@pytest.mark.process
def test_the_process_ends_when_it_is_told_to(workspace: Workspace, program: list[str]) -> None:
    run = start_run(workspace, "train", job_id="job")
    run.metrics({"loss": 1.0}, step=1)
    process = subprocess.Popen([*program, run.run_id, "--interval", "600"])
    mirrored(workspace, 1)
    run.metrics({"loss": 0.5}, step=2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert mirrored(workspace, 2) == ["metrics", "metrics"]


@pytest.mark.process
def test_the_process_ends_when_its_parent_is_gone(workspace: Workspace, program: list[str]) -> None:
    run = start_run(workspace, "train", job_id="job")
    run.metrics({"loss": 1.0}, step=1)
    command = [*program, run.run_id, "--interval", "0.05"]
    code = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    # The pipe closes when its last holder, the sidecar, has ended.
    parent = subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    mirrored(workspace, 1)
    parent.kill()
    parent.wait()
    with parent.stdout:
        assert parent.stdout.read() == b""
    assert read_run(workspace).status == "running"


@pytest.fixture
def file_mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only the mirror of the plug-ins: the process has CPU time only where nobody else wants it."""
    monkeypatch.syspath_prepend(PLUGINS)
    monkeypatch.setenv("PYTHONPATH", str(PLUGINS))
    monkeypatch.setenv("TIMONEL_MIRRORS", "file")
    known_mirrors.cache_clear()
    yield
    known_mirrors.cache_clear()


@pytest.mark.process
@pytest.mark.usefixtures("file_mirror")
def test_a_run_is_mirrored_in_the_background(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_run(workspace, "convert") as run:
        pass
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))  # type: ignore[call-overload] # passed on
        return started[-1]

    monkeypatch.setattr(sidecar.subprocess, "Popen", start)
    sidecar.mirror_in_background(workspace)
    assert started[0].wait(240) == 0
    assert f"{run.run_id}: sent 1 events to file" in (workspace.root / LOG).read_text()
    assert (workspace.root / f"{run.run_id}.mirrored").read_text() == "finish\n"


def test_without_mirrors_no_process_is_started(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run(workspace, "convert")
    monkeypatch.setattr(sidecar, "installed_mirrors", lambda _: [])
    monkeypatch.setattr(sidecar.subprocess, "Popen", pytest.fail)
    sidecar.mirror_in_background(workspace)
    assert not (run.folder / "mirrors").exists()
    assert not (workspace.root / LOG).exists()


def test_one_process_of_a_workspace_catches_up_at_a_time(workspace: Workspace) -> None:
    with start_run(workspace, "convert") as run:
        pass
    mirror = MemoryMirror(workspace, {})
    with exclusive(workspace.root / LOCK):
        assert sidecar.catch_up(workspace, [mirror]) == []
    (fed,) = sidecar.catch_up(workspace, [mirror])
    assert (fed.run_id, fed.is_complete) == (run.run_id, True)
    assert sidecar.catch_up(workspace, [mirror]) == []
