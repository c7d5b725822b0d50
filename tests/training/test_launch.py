from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from timonel.data import Dataset
from timonel.engines import (
    ElasticEngine,
    Engine,
    FailureCause,
    JobSpec,
    JobState,
    JobStatus,
    LogLine,
    ResumingEngine,
)
from timonel.errors import (
    EngineError,
    Interrupted,
    JobError,
    NotFoundError,
    SpecError,
    UserCodeError,
)
from timonel.storage import Workspace, find_workspace
from timonel.tracking import list_runs, open_run, read_run
from timonel.training import Run, train
from timonel.training.spec import read_spec


class FakeEngine(Engine):
    """Accepts a job and says at once how it ended."""

    name = "fake"
    shares_machine = True

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        raise NotImplementedError(f"tests make it, not {workspace}")

    def __init__(self, outcome: dict[str, Any] | BaseException) -> None:
        self.outcome = outcome
        self.specs: list[JobSpec] = []
        self.cancelled: list[str] = []

    def submit(self, spec: JobSpec) -> None:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        self.specs.append(spec)

    def status(self, job_id: str) -> JobStatus:
        return JobStatus.model_validate({"job_id": job_id, **self.outcome})  # type: ignore[dict-item] # a mapping once submitted

    def logs(
        self, job_id: str, *, task_id: str | None = None, follow: bool = False
    ) -> Iterator[LogLine]:
        return iter(())

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)

    def jobs(self) -> list[JobStatus]:
        return [self.status(spec.job_id) for spec in self.specs]


SUCCEEDED = {"state": JobState.SUCCEEDED}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import keras\n")
    return path


def test_what_an_engine_is_asked_for(script: Path, dataset: Dataset, workspace: Workspace) -> None:
    engine = FakeEngine(SUCCEEDED)
    run = train(
        script,
        data={"digits": dataset.uri},
        workers=3,
        params={"lr": 0.1, "password": "hunter2"},
        args=["--epochs", "2"],
        workspace=workspace,
        on=engine,
        name="mine",
        max_restarts=5,
        max_runtime="2h",
    )
    (spec,) = engine.specs
    assert spec.job_id == run.id
    assert [(role.name, role.replicas) for role in spec.roles] == [("chief", 1), ("worker", 2)]
    assert spec.module == "timonel.training.worker"
    assert spec.restart.max_restarts == 5
    assert spec.max_runtime_s == 7200
    assert spec.source == str(Path.cwd())
    assert spec.args == ("--workspace", str(workspace.root), "--run", run.id)
    assert spec.preload[0] == "keras"
    assert spec.env == {"TF_CPP_MIN_LOG_LEVEL": "2"}
    assert spec.epilogue is not None
    assert spec.epilogue.module == "timonel.training.finish"
    assert [command.module for command in spec.sidecars] == ["timonel.tracking.mirrors.sidecar"]

    told = read_spec(workspace.runs / spec.job_id / "train.json")
    assert told.data == {"digits": dataset.uri}
    assert told.argv("/job") == [str(script), "--lr=0.1", "--password=hunter2", "--epochs", "2"]
    record = run.record
    assert (record.name, record.params["lr"], record.params["timonel.workers"]) == (
        "mine",
        "0.1",
        3,
    )
    assert "hunter2" not in (record.folder / "run.json").read_text()
    assert (record.folder / "source" / "train.py").read_text() == "import keras\n"


def test_one_worker_without_a_warm_start(script: Path, workspace: Workspace) -> None:
    engine = FakeEngine(SUCCEEDED)
    train(script, workspace=workspace, on=engine, warm=False, seed=3)
    (spec,) = engine.specs
    assert [(role.name, role.replicas) for role in spec.roles] == [("chief", 1)]
    assert spec.preload == ()
    assert read_spec(workspace.runs / spec.job_id / "train.json").seed == 3


def test_nothing_is_made_of_a_bad_request(tmp_path: Path, workspace: Workspace) -> None:
    with pytest.raises(NotFoundError):
        train(tmp_path / "absent.py", workspace=workspace, on=FakeEngine(SUCCEEDED))
    assert list_runs(workspace) == []


def test_an_engine_that_refuses(script: Path, workspace: Workspace) -> None:
    engine = FakeEngine(EngineError("no room"))
    with pytest.raises(EngineError, match="no room"):
        train(script, workspace=workspace, on=engine)
    assert [record.status for record in list_runs(workspace)] == ["failed"]


def test_ctrl_c_before_the_job_is_accepted(script: Path, workspace: Workspace) -> None:
    with pytest.raises(Interrupted, match="was not started"):
        train(script, workspace=workspace, on=FakeEngine(KeyboardInterrupt()))
    assert [record.status for record in list_runs(workspace)] == ["stopped"]


def test_ctrl_c_while_it_runs(script: Path, workspace: Workspace) -> None:
    engine = FakeEngine({"state": JobState.STOPPED})

    def progress(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="has stopped: it saved no checkpoint"):
        train(script, workspace=workspace, on=engine, progress=progress)
    assert engine.cancelled == [engine.specs[0].job_id]


def test_detached(script: Path, workspace: Workspace) -> None:
    run = train(
        script, workspace=workspace, on=FakeEngine({"state": JobState.RUNNING}), detach=True
    )
    assert run.job.status().state is JobState.RUNNING
    assert run.job.wait(timeout_s=0).state is JobState.RUNNING
    run.job.stop()


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ({"state": JobState.FAILED, "cause": FailureCause.LOST_PEER, "message": "m"}, JobError),
        ({"state": JobState.FAILED, "cause": FailureCause.ENGINE, "message": "m"}, EngineError),
        (
            {"state": JobState.FAILED, "cause": FailureCause.USER_ERROR, "message": "m"},
            UserCodeError,
        ),
        ({"state": JobState.STOPPED}, Interrupted),
    ],
)
def test_how_a_job_ended(
    script: Path, workspace: Workspace, outcome: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        train(script, workspace=workspace, on=FakeEngine(outcome))
    assert type(caught.value) is error


@pytest.mark.parametrize("has_output", [True, False])
def test_a_failure_of_the_engine_refers_to_output_if_there_is_any(
    script: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, *, has_output: bool
) -> None:
    lines = [LogLine(task_id="worker-0", text="hello")] if has_output else []
    monkeypatch.setattr(FakeEngine, "logs", lambda *_, **__: iter(lines))
    outcome = {"state": JobState.FAILED, "cause": FailureCause.ENGINE, "message": "no folder"}
    with pytest.raises(EngineError, match="no folder") as caught:
        train(script, workspace=workspace, on=FakeEngine(outcome))
    assert ("timonel logs" in str(caught.value.hint)) is has_output


def test_the_traceback_of_the_task_that_failed(script: Path, workspace: Workspace) -> None:
    outcome = {
        "state": JobState.FAILED,
        "cause": FailureCause.USER_ERROR,
        "failed_task": "worker-0",
        "message": "ValueError: second",
    }
    engine = FakeEngine(outcome)
    run = train(script, workspace=workspace, on=engine, detach=True)
    writer = open_run(workspace, run.id)
    writer.event("error", task="worker-0", traceback="ValueError: second\n")
    writer.event("error", task="chief-0", traceback="ValueError: first\n")
    with pytest.raises(UserCodeError) as caught:
        run.wait()
    assert str(caught.value) == "ValueError: second"


def test_a_handle_reads_anew(script: Path, workspace: Workspace) -> None:
    run: Run = train(script, workspace=workspace, on=FakeEngine(SUCCEEDED))
    open_run(workspace, run.id).metrics({"loss": 1.0})
    assert run.metrics == {"loss": 1.0}
    assert read_run(workspace, run.id).metrics == run.metrics


@pytest.mark.process
def test_the_control_side_imports_no_tensorflow() -> None:
    code = (
        "import sys, timonel.training.launch, timonel.training.finish;"
        "print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def squared(x: float, job_dir: str = "") -> float:
    return x * x


def test_a_function_that_can_be_imported(workspace: Workspace) -> None:
    engine = FakeEngine(SUCCEEDED)
    run = train(squared, params={"x": 1.5}, pass_job_dir=True, workspace=workspace, on=engine)
    told = read_spec(workspace.runs / engine.specs[0].job_id / "train.json")
    assert (told.entry, told.target) == ("function", "tests.training.test_launch:squared")
    assert (told.keywords, told.pickled) == ({"x": 1.5}, None)
    assert told.argv("/job") == [__file__]
    assert run.record.params["x"] == "1.5"
    assert (run.record.folder / "source" / "test_launch.py").read_text() == Path(
        __file__
    ).read_text()
    assert [artifact.name for artifact in run.record.inputs] == ["squared"]
    assert run.result is None
    open_run(workspace, run.id).event("result", value=2.25)
    assert run.result == 2.25


def test_a_function_that_cannot_be_imported(workspace: Workspace) -> None:
    engine = FakeEngine(SUCCEEDED)
    run = train(lambda x: x, params={"x": [1] * 200}, workspace=workspace, on=engine)
    told = read_spec(workspace.runs / engine.specs[0].job_id / "train.json")
    assert told.target is None
    assert told.pickled == "function.pkl"
    assert (run.record.folder / told.pickled).stat().st_size > 0
    assert len(run.record.params["x"]) == 200  # a glimpse


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"params": {"x": 1, "y": 1}}, "unexpected keyword"),
        ({"params": {}}, "missing a required argument"),
        ({"params": {"x": 1}, "args": ["a"]}, "the function squared takes no args"),
    ],
)
def test_a_function_is_not_called_wrongly(
    workspace: Workspace, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        train(squared, workspace=workspace, on=FakeEngine(SUCCEEDED), **changes)
    assert list_runs(workspace) == []


def test_a_notebook_and_a_module_are_told_apart(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    cell = {"cell_type": "code", "source": "import tf_keras"}
    (tmp_path / "notes" / "a.ipynb").write_text(json.dumps({"nbformat": 4, "cells": [cell]}))
    (tmp_path / "mine.py").touch()
    engine = FakeEngine(SUCCEEDED)
    for entry in ("notes/a.ipynb", "mine"):
        train(entry, args=["--epochs", "2"], workspace=workspace, on=engine)
    notebook, module = engine.specs
    assert notebook.source == str(tmp_path / "notes")
    assert notebook.env["TF_USE_LEGACY_KERAS"] == "1"
    assert notebook.preload[0] == "tf_keras"
    assert module.source == str(tmp_path)
    told = read_spec(workspace.runs / module.job_id / "train.json")
    assert (told.entry, told.target) == ("module", "mine")
    assert told.argv("/job") == [str(tmp_path / "mine.py"), "--epochs", "2"]


def test_mpirun_is_asked_for_as_one_task(
    script: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.training.mpi.find_mpirun", lambda: "mpirun")
    engine = FakeEngine(SUCCEEDED)
    train(script, workspace=workspace, on=engine, workers=3, launcher="mpi")
    (spec,) = engine.specs
    assert spec.module == "timonel.training.worker.mpi"
    assert spec.size == 1
    assert spec.preload == ()


def test_as_many_ranks_as_workers(
    script: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(SpecError, match="mpirun has 2 workers, but --workers is 3"):
        train(script, workspace=workspace, workers=3, launcher="mpi")
    assert list_runs(workspace) == []


def test_an_engine_of_other_machines_needs_a_bucket(script: Path, workspace: Workspace) -> None:
    engine = FakeEngine(SUCCEEDED)
    engine.shares_machine = False
    with pytest.raises(SpecError, match="do not see the workspace"):
        train(script, workspace=workspace, on=engine)
    assert engine.specs == []
    assert list_runs(workspace) == []


def test_other_machines_find_the_script_in_the_source(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket = find_workspace(f"memory://{uuid.uuid4().hex}")
    engine = FakeEngine(SUCCEEDED)
    engine.shares_machine = False
    with pytest.raises(SpecError, match=r"tasks on fake do not see .*train\.py"):
        train(script, workspace=bucket, on=engine)
    monkeypatch.chdir(script.parent)
    train(script, workspace=bucket, on=engine)
    (spec,) = engine.specs
    assert spec.source == str(script.parent)
    assert read_spec(bucket.runs / spec.job_id / "train.json").script == "train.py"


def test_what_a_cluster_of_ones_own_does_not_go_with(
    script: Path, workspace: Workspace, tmp_path: Path
) -> None:
    place = tmp_path / "cluster.json"
    place.write_text(json.dumps({"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}))
    for options, words in (
        ({"task_type": "chief"}, "need --cluster"),
        ({"cluster": place, "task_type": "chief", "launcher": "mpi"}, "cannot be combined"),
        ({"cluster": place, "task_type": "chief", "workers": 5}, "but --workers is 5"),
        ({"cluster": place, "task_type": "chief", "ps": 1}, "has 0 ps, but --ps is 1"),
        ({"cluster": place, "task_type": "evaluator"}, "--evaluator is missing"),
        ({"cluster": place, "task_type": "chief", "detach": True}, "--detach cannot be used"),
        ({"cluster": place, "task_type": "chief", "on": "local"}, "--on cannot be used"),
    ):
        with pytest.raises(SpecError, match=words):
            train(script, workspace=workspace, **options)
    assert list_runs(workspace) == []


def test_weights_and_biases(
    script: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("TIMONEL_MIRRORS", "wandb")
    run = train(
        script,
        workspace=workspace,
        on=FakeEngine(SUCCEEDED),
        wandb=True,
        wandb_project="digits",
    )
    assert run.record.params["timonel.wandb"] is True
    assert run.record.params["timonel.wandb_project"] == "digits"
    with pytest.raises(SpecError, match="--wandb-project requires --wandb"):
        train(script, workspace=workspace, wandb_project="digits")


class AbleEngine(FakeEngine, ElasticEngine, ResumingEngine):
    """One that changes sizes and starts jobs again as well."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        super().__init__(outcome)
        self.sizes: list[dict[str, int]] = []
        self.resumed: list[str] = []

    def scale(self, job_id: str, sizes: Mapping[str, int]) -> None:
        self.sizes.append(dict(sizes))

    def resume(self, job_id: str) -> None:
        self.resumed.append(job_id)


def test_a_handle_changes_the_size_and_resumes(script: Path, workspace: Workspace) -> None:
    size = {"role": "worker", "least": 1, "most": 3, "now": 3, "requested": 3}
    engine = AbleEngine({"state": JobState.RUNNING, "sizes": [size]})
    run = train(script, workspace=workspace, on=engine, detach=True, workers="2:4")
    run.job.scale(3)
    assert engine.sizes == [{"worker": 2}]  # and the chief
    with pytest.raises(SpecError, match="can have 2 to 4 workers, got 5"):
        run.job.scale(5)

    open_run(workspace, run.id).finish("stopped", "m", "stopped")
    engine.outcome = {"state": JobState.STOPPED}
    assert run.record.is_finished
    run.resume()
    assert engine.resumed == [run.id]
    assert not run.record.is_finished


def test_an_engine_that_can_do_neither(script: Path, workspace: Workspace) -> None:
    engine = FakeEngine({"state": JobState.RUNNING})
    run = train(script, workspace=workspace, on=engine, detach=True)
    with pytest.raises(SpecError, match="is not elastic"):
        run.job.scale(2)
    with pytest.raises(SpecError, match="engine fake cannot restart jobs"):
        run.resume()
