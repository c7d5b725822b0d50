"""Zygotes: what is shared, when they are not used, and when they end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.engines import eventually
from tests.engines.local.conftest import zygotes
from tests.engines.local.harness import LocalHarness
from tests.python_path import python_path
from timonel.engines import JobState, RoleSpec
from timonel.processes.zygote_client import LINGER

pytestmark = pytest.mark.process


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test alone, so that it begins without zygotes."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def engine(tmp_path: Path, runtime: Path) -> Iterator[LocalHarness]:
    jobs = tmp_path / "jobs"
    modules = tmp_path / "modules"
    modules.mkdir()
    env = {LINGER: "0", "PYTHONPATH": python_path(modules)}
    harness = LocalHarness.at(jobs, tmp_path, ("colorsys",), env)
    yield harness
    harness.close()
    eventually(lambda: has_no_parent(runtime))


def write_module(engine: LocalHarness, name: str, text: str) -> None:
    (engine.working_dir / "modules" / f"{name}.py").write_text(text)
    engine.preload = (name,)


def notes(engine: LocalHarness, job_id: str = "job") -> list[str]:
    return [line.text for line in engine.engine.logs(job_id) if "without a zygote" in line.text]


def has_no_parent(runtime: Path) -> bool:
    return not zygotes(runtime)


def test_a_parent_without_linger_ends_with_its_job(engine: LocalHarness, runtime: Path) -> None:
    engine.submit("ready", "await:go")
    engine.wait_for_state("job", JobState.RUNNING)
    assert len(zygotes(runtime)) == 1
    engine.file("go").touch()
    assert engine.wait("job").state is JobState.SUCCEEDED
    eventually(lambda: has_no_parent(runtime))
    assert notes(engine) == []
    assert list((runtime / "timonel").glob("*.sock")) == []


def test_jobs_share_a_parent(engine: LocalHarness, runtime: Path) -> None:
    engine.submit("ready", "await:go", job_id="one")
    engine.wait_for_state("one", JobState.RUNNING)
    parents = zygotes(runtime)
    engine.submit("ready", "await:go", job_id="two")
    engine.wait_for_state("two", JobState.RUNNING)
    assert zygotes(runtime) == parents
    for job_id in ("one", "two"):
        engine.file("go", job_id).touch()
        assert engine.wait(job_id).state is JobState.SUCCEEDED


def test_what_differs_on_import_has_a_parent_of_its_own(
    engine: LocalHarness, runtime: Path
) -> None:
    engine.submit("ready", "await:go", job_id="one")
    engine.submit("ready", "await:go", job_id="two", env={"TF_USE_LEGACY_KERAS": "1"})
    for job_id in ("one", "two"):
        engine.wait_for_state(job_id, JobState.RUNNING)
    assert len(zygotes(runtime)) == 2
    for job_id in ("one", "two"):
        engine.file("go", job_id).touch()
        engine.wait(job_id)


def test_a_parent_whose_sources_changed_is_not_used(engine: LocalHarness, runtime: Path) -> None:
    write_module(engine, "shared", "VALUE = 1\n")
    engine.submit("ready", "await:go", job_id="one")
    engine.wait_for_state("one", JobState.RUNNING)
    before = zygotes(runtime)
    write_module(engine, "shared", "VALUE = 20\n")
    engine.submit("ready", "await:go", job_id="two")
    engine.wait_for_state("two", JobState.RUNNING)
    assert set(zygotes(runtime)) - set(before)
    assert notes(engine, "two") == []
    for job_id in ("one", "two"):
        engine.file("go", job_id).touch()
        assert engine.wait(job_id).state is JobState.SUCCEEDED


def test_a_job_goes_on_and_restarts_without_its_parent(engine: LocalHarness, runtime: Path) -> None:
    engine.submit("g1@ready", "g1@await:fail", "g1@exit:75", "dump:env.json", "ready", "await:go")
    engine.wait_for_state("job", JobState.RUNNING)
    os.kill(zygotes(runtime)[0], signal.SIGKILL)
    eventually(lambda: has_no_parent(runtime))
    engine.file("fail").touch()
    engine.wait_until("job", lambda s: s.generation == 2 and s.state is JobState.RUNNING)
    assert notes(engine) == []
    assert "colorsys" in json.loads(engine.file("env.json").read_text())["modules"]
    engine.file("go").touch()
    assert engine.wait("job").state is JobState.SUCCEEDED
    engine.assert_nothing_left()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("raise ImportError('no such library')", "importing broken failed: ImportError"),
        (
            "from threading import Event, Thread\nThread(target=Event().wait, daemon=True).start()",
            "its imports started 1 thread",
        ),
        ("import os\nos._exit(3)", "the zygote"),
    ],
)
def test_a_parent_that_cannot_fork_means_a_plain_start(
    engine: LocalHarness, runtime: Path, text: str, note: str
) -> None:
    write_module(engine, "broken", text)
    engine.preload = ("colorsys", "broken")
    assert engine.run("ready", "print:done").state is JobState.SUCCEEDED
    assert all(note in line for line in notes(engine))
    assert len(notes(engine)) == 2
    assert ("worker-1", "done") in engine.lines()


def test_a_folder_that_others_may_write_is_not_used(engine: LocalHarness, runtime: Path) -> None:
    (runtime / "timonel").mkdir()
    (runtime / "timonel").chmod(0o777)
    assert engine.run("ready").state is JobState.SUCCEEDED
    assert len(notes(engine)) == 2
    assert all("is accessible to other users" in line for line in notes(engine))


def test_cancel_does_not_wait_for_a_long_import(engine: LocalHarness, runtime: Path) -> None:
    write_module(engine, "slow", "import signal\nsignal.pause()")
    engine.submit("ready", stop_grace_s=5)
    engine.engine.cancel("job")
    assert engine.wait("job").state is JobState.STOPPED
    for pid in zygotes(runtime):
        os.kill(pid, signal.SIGKILL)


def test_a_program_ends_as_in_an_interpreter(engine: LocalHarness, runtime: Path) -> None:
    program = """
import atexit, os, signal, sys, threading, time
assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread done"))).start()
open(os.path.join(os.environ["TIMONEL_TASK_DIR"], "ready"), "w").close()
print("unflushed", end="\\n")
sys.exit("no luck")
"""
    (engine.working_dir / "program.py").write_text(program)
    # One task: of several, the first that fails has the others stopped.
    alone = engine.spec(roles=(RoleSpec(name="worker"),))
    engine.engine.submit(alone.model_copy(update={"module": "program"}))
    status = engine.wait("job")
    assert status.tasks[0].exit_code == 1
    assert [text for _, text in engine.lines(task_id="worker-0")] == [
        "unflushed",
        "no luck",
        "thread done",
        "at exit",
    ]


def test_a_traceback_has_no_frame_of_the_engine(engine: LocalHarness, runtime: Path) -> None:
    # One task: of several, the first that fails has the others stopped.
    engine.run("raise:no such column", roles=(RoleSpec(name="worker"),))
    text = "\n".join(text for _, text in engine.lines(task_id="worker-0"))
    assert text.count("Traceback") == 1
    assert "engines/local" not in text
    assert text.endswith("RuntimeError: no such column")
