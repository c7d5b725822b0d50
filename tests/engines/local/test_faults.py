"""What the local engine does when its own processes die, by killing them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.engines import TASK_MODULE, eventually
from tests.engines.local.harness import LocalHarness
from timonel.engines import (
    CommandSpec,
    FailureCause,
    JobState,
    JobStatus,
    RestartPolicy,
    RoleSpec,
)
from timonel.engines.local import LocalEngine
from timonel.engines.local.folder import JobFolder
from timonel.errors import EngineError
from timonel.processes.zygote_client import LINGER

EPILOGUE = CommandSpec(module=TASK_MODULE, args=("append:outcomes",))


@pytest.fixture(params=["plain", "warm"])
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, zygote_runtime: Path
) -> Iterator[LocalHarness]:
    jobs = tmp_path / "jobs"
    preload = ("colorsys",) if request.param == "warm" else ()
    harness = LocalHarness.at(jobs, tmp_path, preload, {LINGER: "60"})
    yield harness
    harness.close()


def record_of(engine: LocalHarness) -> Any:
    return JobFolder(engine.file("")).read()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def agent_of(status: JobStatus, index: int) -> int:
    pid = status.tasks[index].pid
    assert pid is not None
    return parent_of(pid)


@pytest.mark.process
def test_a_job_goes_on_under_another_supervisor(engine: LocalHarness) -> None:
    sidecars = (CommandSpec(module=TASK_MODULE, args=("ignore-term", "wait")),)
    steps = ("g1@ignore-term", "stray", "ready", "g2@dump:again.json", "await:go")
    engine.submit(*steps, epilogue=EPILOGUE, sidecars=sidecars)
    before = engine.wait_for_state("job", JobState.RUNNING)
    os.kill(record_of(engine).supervisor.pid, signal.SIGKILL)
    after = engine.wait_until("job", lambda s: s.generation == 2 and s.state is JobState.RUNNING)
    why = "its supervisor was killed (signal 9)"
    assert (after.restarts, after.cause, after.message) == (1, FailureCause.ENGINE, why)
    assert {task.pid for task in before.tasks}.isdisjoint(task.pid for task in after.tasks)
    # Of what the first one has left nothing is there: one stray for each task, and one sidecar.
    commands = [command for _, command in engine.processes()]
    assert len([command for command in commands if "sleep" in command]) == len(after.tasks)
    eventually(engine.file("again.json").exists)
    told = json.loads(engine.file("again.json").read_text())["environ"]["TIMONEL_CLUSTER"]
    assert json.loads(told)["reason"] == why
    engine.file("go").touch()
    assert engine.wait("job").state is JobState.SUCCEEDED
    outcomes = engine.file("outcomes").read_text().splitlines()
    assert [json.loads(line)["state"] for line in outcomes] == ["succeeded"]


@pytest.mark.process
def test_a_supervisor_that_is_killed_again_and_again_fails_the_job(engine: LocalHarness) -> None:
    restart = RestartPolicy(max_restarts=1)
    engine.submit("ignore-term", "stray", "ready", "wait", epilogue=EPILOGUE, restart=restart)
    for generation in (1, 2):
        engine.wait_until(
            "job", lambda s, n=generation: s.generation == n and s.state is JobState.RUNNING
        )
        os.kill(record_of(engine).supervisor.pid, signal.SIGKILL)
    status = engine.wait("job")
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.ENGINE)
    assert status.message == "supervisor died (signal 9)"
    outcomes = engine.file("outcomes").read_text().splitlines()
    assert [json.loads(line)["state"] for line in outcomes] == ["failed"]


@pytest.mark.process
def test_a_job_that_was_to_stop_is_not_started_again(engine: LocalHarness) -> None:
    engine.submit("ignore-term", "ready", "wait", stop_grace_s=30.0)
    engine.wait_for_state("job", JobState.RUNNING)
    supervisor = record_of(engine).supervisor.pid
    engine.engine.cancel("job")
    engine.wait_for_state("job", JobState.STOPPING)
    os.kill(supervisor, signal.SIGKILL)
    status = engine.wait("job")
    assert (status.state, status.generation) == (JobState.STOPPED, 1)


@pytest.mark.process
def test_a_job_whose_epilogue_has_begun_is_not_started_again(engine: LocalHarness) -> None:
    steps = ("touch:begun", "await:go", "append:outcomes")
    engine.submit("ready", epilogue=CommandSpec(module=TASK_MODULE, args=steps))
    eventually(engine.file("begun").exists)
    os.kill(record_of(engine).supervisor.pid, signal.SIGKILL)
    engine.file("go").touch()
    status = engine.wait("job")
    assert (status.state, status.generation) == (JobState.FAILED, 1)
    assert status.message == "supervisor died (signal 9)"
    last = engine.file("outcomes").read_text().splitlines()[-1]
    assert json.loads(last)["state"] == "failed"


@pytest.mark.process
def test_a_job_is_resumed_though_its_sidecar_takes_its_time(engine: LocalHarness) -> None:
    sidecar = CommandSpec(module=TASK_MODULE, args=("wait",), patience_s=600.0)
    engine.submit("ready", "g1@wait", sidecars=(sidecar,))
    engine.wait_for_state("job", JobState.RUNNING)
    engine.engine.cancel("job")
    assert engine.wait("job").state is JobState.STOPPED
    assert record_of(engine).is_supervised
    LocalEngine(engine.jobs_dir).resume("job")
    assert engine.wait("job").state is JobState.SUCCEEDED
    record_of(engine).supervisor.signal(signal.SIGTERM)


@pytest.mark.process
def test_a_job_ends_even_if_guard_and_supervisor_are_killed(engine: LocalHarness) -> None:
    engine.submit("ignore-term", "stray", "ready", "wait")
    engine.wait_for_state("job", JobState.RUNNING)
    record = record_of(engine)
    os.kill(record.owner.pid, signal.SIGKILL)
    os.kill(record.supervisor.pid, signal.SIGKILL)
    status = engine.wait("job")
    assert (status.cause, status.message) == (FailureCause.ENGINE, "supervisor died")
    assert {task.state for task in status.tasks} == {"failed"}
    engine.engine.cancel("job")


@pytest.mark.process
def test_a_job_whose_supervisor_and_guard_were_killed_is_resumed(engine: LocalHarness) -> None:
    engine.submit("ignore-term", "stray", "ready", "g1@wait")
    engine.wait_for_state("job", JobState.RUNNING)
    record = record_of(engine)
    os.kill(record.owner.pid, signal.SIGKILL)
    os.kill(record.supervisor.pid, signal.SIGKILL)
    assert engine.wait("job").state is JobState.FAILED
    LocalEngine(engine.jobs_dir).resume("job")
    status = engine.wait("job")
    assert (status.state, status.generation) == (JobState.SUCCEEDED, 2)


@pytest.mark.process
def test_a_job_that_cannot_be_resumed_is_as_it_was(
    engine: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine.run("ready", "exit:3")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(EngineError, match="supervisor"):
            LocalEngine(engine.jobs_dir).resume("job")
    assert engine.engine.status("job") == before


@pytest.mark.process
def test_a_job_does_not_need_its_guard(engine: LocalHarness) -> None:
    engine.submit("ready", "await:go")
    engine.wait_for_state("job", JobState.RUNNING)
    os.kill(record_of(engine).owner.pid, signal.SIGKILL)
    engine.file("go").touch()
    assert engine.wait("job").state is JobState.SUCCEEDED


@pytest.mark.process
def test_a_killed_agent_takes_its_task_along_and_is_replaced(engine: LocalHarness) -> None:
    engine.submit("g1@ignore-term", "g1@stray", "ready", "g1@wait", stop_grace_s=0.2)
    status = engine.wait_for_state("job", JobState.RUNNING)
    os.kill(agent_of(status, 1), signal.SIGKILL)
    status = engine.wait("job")
    assert (status.state, status.generation) == (JobState.SUCCEEDED, 2)


@pytest.mark.process
def test_a_task_comes_back_in_place_after_its_agent_was_killed(engine: LocalHarness) -> None:
    roles = (RoleSpec(name="chief"), RoleSpec(name="worker", on_loss="restart-task"))
    engine.submit("a1@stray", "listen", "ready", "await:go", roles=roles)
    before = engine.wait_for_state("job", JobState.RUNNING)
    os.kill(agent_of(before, 1), signal.SIGKILL)
    after = engine.wait_until(
        "job", lambda s: (s.tasks[1].attempt, s.tasks[1].state) == (2, "running")
    )
    assert (after.generation, after.tasks[0]) == (1, before.tasks[0])
    assert after.tasks[1].address == before.tasks[1].address
    # The stray of the first attempt was killed; that of the chief is its own.
    assert len([command for _, command in engine.processes() if "sleep" in command]) == 1
    engine.file("go").touch()
    assert engine.wait("job").state is JobState.SUCCEEDED


@pytest.mark.process
def test_killed_agents_and_supervisor_leave_nothing_to_cancel(engine: LocalHarness) -> None:
    engine.submit("ignore-term", "stray", "ready", "wait")
    status = engine.wait_for_state("job", JobState.RUNNING)
    agents = [agent_of(status, 0), agent_of(status, 1)]
    record = record_of(engine)
    for pid in (record.owner.pid, record.supervisor.pid, *agents):
        with contextlib.suppress(ProcessLookupError):  # an agent may have ended with its supervisor
            os.kill(pid, signal.SIGKILL)
    assert engine.wait("job").cause is FailureCause.ENGINE
    engine.engine.cancel("job")


@pytest.mark.process
@pytest.mark.parametrize("engine", ["warm"], indirect=True)  # takes the margin of five seconds
def test_an_agent_that_hangs_is_killed(engine: LocalHarness) -> None:
    engine.submit("ready", "wait", stop_grace_s=0.1)
    status = engine.wait_for_state("job", JobState.RUNNING)
    os.kill(agent_of(status, 0), signal.SIGSTOP)
    engine.engine.cancel("job")
    assert engine.wait("job").state is JobState.STOPPED


@pytest.mark.process
def test_sigterm_to_the_supervisor_is_recorded_and_stops_the_job(engine: LocalHarness) -> None:
    engine.submit("ready", "wait")
    engine.wait_for_state("job", JobState.RUNNING)
    os.kill(record_of(engine).supervisor.pid, signal.SIGTERM)
    assert engine.wait("job").state is JobState.STOPPED
    assert "signal" in json.loads(engine.file("stop").read_text())["reason"]


@pytest.mark.process
def test_strays_are_gone_before_the_next_generation(engine: LocalHarness) -> None:
    engine.submit("g1@stray", "g1@exit:75", "ready", "await:go")
    engine.wait_until("job", lambda s: s.generation == 2 and s.state is JobState.RUNNING)
    assert [command for _, command in engine.processes() if "sleep" in command] == []
    engine.file("go").touch()
    assert engine.wait("job").state is JobState.SUCCEEDED


def test_a_supervisor_that_cannot_start_leaves_no_job(
    engine: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="supervisor"):
        engine.submit("ready")
    assert engine.engine.jobs() == []
    assert not engine.file("").exists()


def test_an_interrupted_submission_is_taken_back(
    engine: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_folder: JobFolder) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("timonel.engines.local.engine.start_supervisor", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.submit("ready")
    assert engine.file("stop").exists()
    # Nobody else took the job over: without its submitter it would be seen as failed.
    shutil.rmtree(engine.file(""))


def test_a_job_whose_submitter_died_before_the_supervisor_came(tmp_path: Path) -> None:
    harness = LocalHarness.at(tmp_path / "jobs", tmp_path)
    submitter = os.fork()
    if submitter == 0:
        import timonel.engines.local.engine as module

        module.start_supervisor = lambda _folder: os.kill(os.getpid(), signal.SIGKILL)
        harness.submit("ready")
    os.waitpid(submitter, 0)
    eventually(lambda: harness.engine.status("job").state is JobState.FAILED)
    assert harness.engine.status("job").cause is FailureCause.ENGINE


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with 200 MB of memory."""
    line = next(
        (text for text in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in text),
        None,
    )
    if line is None:
        pytest.skip("needs a memory controller of control groups, version 1")
    group = Path("/sys/fs/cgroup/memory", line.split(":", 2)[2].lstrip("/"), f"test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("200000000")
    except OSError as error:
        pytest.skip(f"needs to make control groups: {error}")
    yield group
    eventually(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.mark.process
def test_a_kill_for_want_of_memory_is_told_from_others(tmp_path: Path, small_group: Path) -> None:
    harness = LocalHarness.at(tmp_path / "jobs", tmp_path)
    (tmp_path / "hog.py").write_text("import time\nhog = bytearray(1 << 30)\ntime.sleep(60)")
    roles = (RoleSpec(name="worker"),)
    spec = harness.spec(roles=roles).model_copy(update={"module": "hog", "args": ()})
    submitter = os.fork()
    if submitter == 0:
        (small_group / "cgroup.procs").write_text(str(os.getpid()))
        harness.engine.submit(spec)
        os._exit(0)
    os.waitpid(submitter, 0)
    status = harness.wait("job")
    assert (status.state, status.cause) == (JobState.FAILED, FailureCause.OUT_OF_MEMORY)
    assert status.restarts == 0
    harness.close()


def test_what_a_supervisor_died_of_is_the_last_line_of_its_log(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    assert folder.last_error() is None
    folder.supervisor_log.write_text("2026-11-20 INFO job started\n")
    assert folder.last_error() is None
    with folder.supervisor_log.open("a") as log:
        log.write("Traceback ...\ntimonel.errors.InputError: expected to write x, got: no space\n")
    assert folder.last_error() == "expected to write x, got: no space"


def test_a_full_disk_is_named_where_the_log_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = JobFolder(tmp_path)
    folder.supervisor_log.touch()
    assert folder.last_error() is None
    free = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert folder.last_error() == "No space left on device"
