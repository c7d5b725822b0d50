"""Jobs on the command line: their size, and starting them again."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.conftest import Timonel
from tests.engines.kubernetes.memory_api import MemoryApi
from tests.engines.local.harness import LocalHarness
from tests.storage.faulty import FaultyServer
from timonel.engines import CommandSpec, JobState, JobStatus, LogLine, RoleSpec
from timonel.engines.kubernetes.api import Api
from timonel.storage import find_workspace
from timonel.tracking import follow_events, read_run, start_run

STEPS = ("leave-at-term", "ready", "await:go")
WORKERS = RoleSpec(name="worker", replicas=3, min_replicas=1)
SERVERS = RoleSpec(
    name="worker", replicas=3, min_replicas=1, on_loss="restart-task", serves=True
)  # fmt: skip


@pytest.fixture
def engine(here: Path) -> Iterator[LocalHarness]:
    workspace = find_workspace()
    harness = LocalHarness.at(workspace.jobs, here)
    yield harness
    harness.close()


def test_an_empty_list_names_the_workspace_that_was_found(timonel: Timonel) -> None:
    workspace = find_workspace()
    start = "Start one with 'timonel train SCRIPT'."
    assert timonel("jobs").out == f"No jobs in {workspace.uri}. {start}\n"
    assert timonel("-w", workspace.uri, "jobs").out == f"No jobs. {start}\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("leader", "trained_by", "workers", "tasks"),
    [
        # Counted as --workers counts them: the chief trains too, but for one that hands out work.
        (RoleSpec(name="chief"), WORKERS, 3, ["chief-0", "worker-0", "worker-1"]),
        (RoleSpec(name="chief"), SERVERS, 2, ["chief-0", "worker-0", "worker-1"]),
        # Of a script that distributes itself: a parameter server does not make the chief one.
        (RoleSpec(name="ps"), WORKERS, 3, ["ps-0", "worker-0", "worker-1"]),
    ],
)
def test_a_job_is_scaled(
    timonel: Timonel,
    engine: LocalHarness,
    leader: RoleSpec,
    trained_by: RoleSpec,
    workers: int,
    tasks: list[str],
) -> None:
    engine.submit(*STEPS, roles=(leader, trained_by))
    engine.wait_for_state("job", JobState.RUNNING)
    assert "3 (1 to 3)" in timonel("jobs", "show", "job").out
    done = timonel("jobs", "scale", "last", workers)
    assert (done.exit_code, done.out) == (0, f"job restarts with {workers} workers\n")
    status = engine.wait_until("job", lambda s: (s.generation, s.state) == (2, JobState.RUNNING))
    assert [task.task_id for task in status.tasks] == tasks
    (size,) = json.loads(timonel("jobs", "show", "job", "--json").out)["sizes"]
    assert (size["now"], size["requested"]) == (2, 2)


@pytest.mark.process
def test_a_size_that_cannot_be_is_refused(timonel: Timonel, engine: LocalHarness) -> None:
    engine.submit("ready", "await:go", roles=(RoleSpec(name="chief"), WORKERS))
    engine.submit("ready", "await:go", job_id="fixed")
    assert "can have 2 to 4 workers, got 1" in timonel("jobs", "scale", "job", 1).error_line
    refused = timonel("jobs", "scale", "fixed", 2)
    assert "is not elastic" in refused.error_line
    engine.engine.cancel("job")
    engine.wait("job")
    assert "it has ended (stopped)" in timonel("jobs", "scale", "job", 2).error_line


@pytest.mark.process
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace('"format": 1', '"format": 2'), "has job-status format 2"),
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda text: text.replace('"tasks": [', '"tasks": [3, '), "the job document "),
    ],
)
def test_a_job_that_cannot_be_read_is_named(
    change: Callable[[str], str],
    said: str,
    timonel: Timonel,
    engine: LocalHarness,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("old", "new"):
        engine.submit("ready", job_id=name)
        engine.wait(name)
    place = find_workspace().jobs / "new" / "status.json"
    place.write_text(change(place.read_text()))
    assert [job["id"] for job in json.loads(timonel("jobs", "--json").out)["jobs"]] == ["old"]
    assert "skipped job new: " in caplog.text
    assert said in caplog.text
    for verb in ("show", "logs", "stop", "resume"):
        assert said in timonel("jobs", verb, "new").error_line
    assert timonel("jobs", "show").out.startswith("old")
    shutil.rmtree(find_workspace().jobs / "old")
    assert "this workspace has no jobs" in timonel("jobs", "show", "last").error_line


@pytest.mark.process
def test_the_document_of_a_job_is_newer_or_damaged(timonel: Timonel, engine: LocalHarness) -> None:
    engine.submit("ready", "print:done")
    engine.wait("job")
    place = find_workspace().jobs / "job" / "spec.json"
    whole = place.read_text()
    for text, said in (
        (
            whole.replace('"format": 1', '"format": 2', 1),
            "has job format 2, this release reads 1: a newer timonel wrote it",
        ),
        (whole.replace('"roles"', '"rolls"', 1), "the job document "),
        ("{", "is not valid JSON"),
    ):
        place.write_text(text)
        assert timonel("jobs", "show", "job").exit_code == 0
        assert said in timonel("jobs", "logs", "job").error_line


def test_logs_without_output_say_why_on_the_error_stream(
    timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "the coordinator cannot be scheduled: of 3 nodes, 3 lack free memory"
    status = JobStatus(job_id="train-1", message=message)
    lines: list[LogLine] = []
    job = SimpleNamespace(id="train-1", status=lambda: status, logs=lambda **_: iter(lines))
    monkeypatch.setattr("timonel.training.jobs.find_job", lambda *_: job)
    find_workspace(create=True)
    shown = timonel("logs", "last")
    assert (shown.exit_code, shown.out) == (0, "")
    assert shown.err == f"train-1 has no output and is pending: {message}\n"
    assert timonel("--quiet", "logs", "last").err == ""
    assert timonel("logs", "last", "worker-0").err == ""
    lines.append(LogLine(task_id="worker-0", text="trained"))
    shown = timonel("logs", "last")
    assert (shown.out, shown.err) == ("trained\n", "")


EPILOGUE = "timonel.training.finish"


def start_failing(engine: LocalHarness) -> None:
    """Submit a job with a run, whose first generation fails."""
    workspace = find_workspace()
    start_run(workspace, "train", run_id="job", job_id="job")
    command = CommandSpec(module=EPILOGUE, args=(str(workspace.root), "job"))
    engine.submit("ready", "g1@exit:3", "print:done", epilogue=command)
    assert engine.wait("job").state is JobState.FAILED


@pytest.mark.process
def test_a_failed_job_is_resumed_with_its_run(timonel: Timonel, engine: LocalHarness) -> None:
    start_failing(engine)
    before = read_run(find_workspace(), "job")
    assert (before.status, before.is_finished) == ("failed", True)
    resumed = timonel("jobs", "resume")
    assert resumed.out == "job resumes: see 'timonel logs job --follow'\n"
    assert engine.wait("job").state is JobState.SUCCEEDED
    after = read_run(find_workspace(), "job")
    assert (after.status, after.cause, after.message) == ("succeeded", None, None)
    assert "but job has succeeded" in timonel("jobs", "resume", "job").error_line
    assert read_run(find_workspace(), "job") == after
    types = [event["type"] for event in follow_events(find_workspace(), "job", stop=lambda: True)]
    assert types == ["finish", "resume", "finish"]


@pytest.mark.process
def test_a_job_that_cannot_be_resumed_keeps_its_run(
    timonel: Timonel, engine: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_failing(engine)
    before = read_run(find_workspace(), "job")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        assert "cannot start the job's supervisor" in timonel("jobs", "resume").error_line
    after = read_run(find_workspace(), "job")
    assert (after.status, after.cause, after.message) == (
        before.status,
        before.cause,
        before.message,
    )


Bucket = tuple[str, FaultyServer]


@pytest.mark.process
def test_commands_of_a_local_job_do_not_ask_the_bucket(
    timonel: Timonel, here: Path, faulty: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    uri, server = faulty
    workspace = find_workspace(uri)
    start_run(workspace, "train", run_id="job", job_id="job")
    harness = LocalHarness.at(workspace.jobs, here)
    harness.submit("print:hello", "ready", "await:go")
    harness.wait_for_state("job", JobState.RUNNING)
    server.seen.clear()
    server.fault = lambda *_: "hang"
    try:
        (listed,) = json.loads(timonel("-w", uri, "jobs", "--json").out)["jobs"]
        assert (listed["id"], listed["machine"]) == ("job", None)
        assert timonel("-w", uri, "jobs").err == ""
        assert "job" in timonel("-w", uri, "jobs", "show").out
        assert "hello" in timonel("-w", uri, "logs").out
        assert "is not elastic" in timonel("-w", uri, "jobs", "scale", "job", 2).error_line
        assert timonel("-w", uri, "stop", "job").out == "job has stopped\n"
        assert server.seen == []
    finally:
        server.over.set()
        harness.close()


def test_a_job_of_another_machine_is_named_with_its_machine(
    timonel: Timonel, here: Path, faulty: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, _ = faulty
    with monkeypatch.context() as there:
        there.setenv("XDG_CACHE_HOME", str(here / "there"))
        there.setattr(socket, "gethostname", lambda: "gpu7")
        workspace = find_workspace(uri)
        writer = start_run(workspace, "train", run_id="train-9", job_id="train-9")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    for words in (("logs", "train-9"), ("stop", "train"), ("jobs", "show"), ("logs", "last")):
        refused = timonel("-w", uri, *words)
        assert refused.error_line == (
            "error: train-9 runs on the machine gpu7, not on this one: repeat the command there; "
            "here, 'timonel runs show train-9' shows its progress"
        )
    assert "no job matches 'nosuch'" in timonel("-w", uri, "logs", "nosuch").error_line
    (listed,) = json.loads(timonel("-w", uri, "jobs", "--json").out)["jobs"]
    assert (listed["id"], listed["state"], listed["machine"]) == ("train-9", "running", "gpu7")
    shown = timonel("-w", uri, "jobs")
    assert "gpu7" in shown.out
    assert "as read from the bucket by the last 'timonel runs'" in shown.err
    writer.event("resume", host="gpu8")
    writer.finish("failed", "no more disk", "crashed")
    assert workspace.local_copy is not None
    workspace.local_copy.runs.push("train-9")
    assert "train-9 ran on the machine gpu8" in timonel("-w", uri, "logs", "train-9").error_line
    (listed,) = json.loads(timonel("-w", uri, "jobs", "--json").out)["jobs"]
    assert (listed["state"], listed["cause"], listed["machine"]) == ("failed", "crashed", "gpu8")


@pytest.mark.process
def test_jobs_on_kubernetes(here: Path, timonel: Timonel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Api, "connect", lambda _: api)
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", "registry.example/timonel:1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    monkeypatch.setenv("TIMONEL_WORKSPACE", f"memory://{uuid.uuid4().hex}")
    api = MemoryApi()
    (here / "train.py").write_text("")
    assert timonel("train", "train.py", "--on", "kubernetes", "--detach").exit_code == 0
    (job,) = json.loads(timonel("jobs", "--json").out)["jobs"]
    assert (job["state"], job["machine"]) == ("pending", None)
    assert timonel("stop", "last", "--no-wait").out == f"{job['id']} has stopped\n"
    assert ("Job", job["id"]) not in api.objects  # it had no coordinator
    assert timonel("stop", "last").out == f"{job['id']} has stopped already\n"
