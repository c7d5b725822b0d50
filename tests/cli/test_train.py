"""Starting jobs: what is refused before anything starts, a script that raises, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml
from rich.console import Console

from tests.cli.conftest import Timonel
from tests.engines.kubernetes.memory_api import MemoryApi
from tests.waiting import until
from timonel.cli import project
from timonel.cli.commands.train import _ended, parse_params
from timonel.cli.options import parse_data
from timonel.engines import JobState, JobStatus, TaskStatus
from timonel.engines.kubernetes.api import Api
from timonel.errors import SpecError
from timonel.storage import find_workspace
from timonel.storage.object_store import ObjectStore
from timonel.training.display import TrainingView

QUICK = ("--strategy", "none", "--no-warm")
"""Starts without TensorFlow, which saves seconds."""


@pytest.fixture
def script(here: Path) -> Path:
    """A script that does nothing; and beside it a notebook that is none, and a cluster."""
    (here / "notes.ipynb").write_text("no JSON")
    (here / "cluster.json").write_text('{"cluster": {"chief": ["a:1"]}}')
    path = here / "train.py"
    path.write_text("print('trained')\n")
    return path


def nothing_started(folder: Path) -> bool:
    """Tell whether there is neither a job nor a run of a job."""
    root = folder / ".timonel"
    return not list(root.glob("jobs/*")) and not list(root.glob("runs/train-*"))


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["absent.py"], "no script at"),
        (["."], "is a folder, not a Python script"),
        (["train.py", "--data", "absent"], "no dataset at"),
        (["train.py", "--workers", "0"], "--workers must be at least 1"),
        (["train.py", "--devices-per-worker", "0"], "at least 1"),
        (["train.py", "--strategy", "magic"], "'magic'"),
        (["train.py", "--set", "=3"], "--set takes NAME=VALUE"),
        (["train.py", "--set", "a b=1"], "'a b'"),
        (["train.py", "--set", "lr=1", "--set", "lr=2"], "--set lr is repeated"),
        (["train.py", "--max-restarts", "-1"], "--max-restarts must be at least 0"),
        (["train.py", "--max-runtime", "0"], "--max-runtime must be more than 0, got 0"),
        (["train.py", "--max-runtime", "soon"], "--max-runtime: expected a duration such as 90s"),
        (["train.py", "--seed", "-1"], "--seed must be from 0 to"),
        (["train.py", "--on", "nowhere"], "'nowhere'"),
        (["train.py", "--data", "a=x", "--data", "y"], "several datasets need names"),
        (["notes.ipynb"], "notes.ipynb is not a notebook"),
        (["json"], "the package json has no __main__"),
        (["no.such.module"], "and no module no.such.module"),
        (["train.py", "--cluster", "absent.json"], "cluster file absent.json does not exist"),
        (["train.py", "--cluster", "env"], "TF_CONFIG does not exist"),
        (["train.py", "--cluster", "cluster.json"], "does not say which task"),
        (["train.py", "--cluster", "cluster.json", "--task-type", "ps"], "got 'ps'"),
        (
            ["train.py", "--cluster", "cluster.json", "--task-type", "chief", "--task-index", "1"],
            "index of chief must be from 0 to 0, got 1",
        ),
        (["train.py", "--task-index", "1"], "need --cluster"),
        (["train.py", "--launcher", "mpi", "--workers", "1:2"], "a fixed number of workers"),
    ],
)
def test_what_cannot_work_is_refused_before_it_starts(
    argv: list[str], part: str, here: Path, timonel: Timonel, script: Path
) -> None:
    outcome = timonel("train", *argv)
    assert outcome.exit_code == 2
    assert part in outcome.error_line
    assert nothing_started(here)


def test_more_workers_than_records(here: Path, timonel: Timonel, script: Path) -> None:
    project.write_digits(here / "digits", 30)
    timonel("convert", "digits", "data")
    outcome = timonel("train", "train.py", "--data", "data", "--workers", "31")
    assert outcome.exit_code == 2
    assert "fewer than the 31 replicas" in outcome.error_line
    assert nothing_started(here)


def test_datasets_are_named() -> None:
    assert parse_data(None) is None
    assert parse_data(["data/x"]) == "data/x"
    assert parse_data(["a/b=c"]) == "a/b=c"  # no name has a slash
    assert parse_data(["left=x", "right=y=z"]) == {"left": "x", "right": "y=z"}
    with pytest.raises(SpecError, match="need names"):
        parse_data(["left=x", "y"])


@pytest.mark.process
def test_a_script_that_raises_shows_its_own_traceback_once(here: Path, timonel: Timonel) -> None:
    (here / "train.py").write_text("import sys\nraise ValueError(sys.argv[1:])\n")
    outcome = timonel("train", "train.py", *QUICK, "--set", "lr=0.1", "--", "--debug", "-w", "--")
    assert outcome.exit_code == 5
    place = here / "train.py"
    assert outcome.err.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{place}", line 2, in <module>',
        "    raise ValueError(sys.argv[1:])",
        "ValueError: ['--lr=0.1', '--debug', '-w', '--']",
    ]
    (job,) = json.loads(timonel("jobs", "--json").out)["jobs"]
    assert (job["state"], job["cause"], job["restarts"]) == ("failed", "user-error", 0)
    assert "ValueError" in timonel("logs").out
    assert timonel("jobs", "show").out.count("failed") >= 2
    assert timonel("stop").out.endswith("has failed already\n")


@pytest.mark.process
@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
def test_an_error_with_a_lone_surrogate_is_shown_and_recorded(
    error: str, here: Path, timonel: Timonel
) -> None:
    (here / "train.py").write_text(f'raise {error}("no file \\udcff")\n')
    outcome = timonel("train", "train.py", *QUICK)
    assert outcome.exit_code == 5
    assert outcome.err.splitlines()[-1].endswith("no file \\udcff")
    (job,) = json.loads(timonel("jobs", "--json").out)["jobs"]
    assert job["cause"] == "user-error"
    assert job["message"].endswith("no file \\udcff")
    assert "no file \\udcff" in timonel("runs", "show").out


@pytest.mark.process
def test_what_a_script_says_that_ends_itself_is_shown(here: Path, timonel: Timonel) -> None:
    (here / "train.py").write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--epochs')\n"
        "parser.parse_args()\n"
    )
    outcome = timonel("train", "train.py", *QUICK, "--set", "epochz=3")
    assert outcome.exit_code == 5
    *said, last = outcome.err.splitlines()
    assert said[0].startswith("usage: train.py [-h]")
    assert said[-1] == "train.py: error: unrecognized arguments: --epochz=3"
    assert last.startswith("error: the script ended with exit code 2: 'timonel logs train-")


@pytest.mark.process
def test_secrets_among_a_scripts_options_are_not_recorded(timonel: Timonel) -> None:
    script = Path(__file__).parents[1] / "training" / "scripts" / "secretive.py"
    words = ("--set", "auth-token=s3cr3t-set", "--", "--password=7654321")
    assert timonel("train", script, *QUICK, *words).exit_code == 0
    run = json.loads(timonel("runs", "show", "--json").out)
    params = run["params"]
    assert params["timonel.args"] == "--password=***"
    assert {name: value for name, value in params.items() if "timonel." not in name} == {
        "auth-token": "***",
        "epochs": 3,
        "key_dim": 64,
        "api_token": "***",
        "password": "***",
        "private_key": "***",
        "login": "{'user': 'ada', 'password': '***'}",
        "source": "https://***@example.com/data",
        "secrets": "***",
    }
    record = Path(run["folder"])
    recorded = [(record / name).read_text() for name in ("run.json", "events.jsonl")]
    assert not [text for text in recorded if "s3cr3t" in text or "7654321" in text]
    assert (record / "train.json").stat().st_mode & 0o077 == 0


@pytest.mark.process
def test_a_run_without_a_model_is_not_to_be_exported(timonel: Timonel, script: Path) -> None:
    outcome = timonel("train", "train.py", *QUICK)
    assert outcome.exit_code == 0
    assert "succeeded" in outcome.out
    assert "export" not in outcome.out


@pytest.mark.process
def test_a_detached_job_is_looked_after_and_stopped(here: Path, timonel: Timonel) -> None:
    (here / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(100)\n")
    outcome = timonel("train", "train.py", *QUICK, "--detach", "--name", "long")
    assert outcome.exit_code == 0
    job = outcome.out.split()[1].rstrip(",")
    until(lambda: "up" in timonel("logs", job).out)
    (listed,) = json.loads(timonel("jobs", "--json").out)["jobs"]
    assert set(listed) == {
        "id", "state", "machine", "created_at", "started_at", "ended_at", "duration_s",
        "generation", "restarts", "cause", "message", "failed_task", "sizes", "tasks",
    }  # fmt: skip
    assert timonel("stop", job).out == f"{job} has stopped\n"
    (run,) = json.loads(timonel("runs", "--json").out)["runs"]
    assert (run["status"], run["name"]) == ("stopped", "long")
    assert timonel("logs", job, "--task", "worker-7").exit_code == 2
    assert timonel("logs", "nope").exit_code == 2


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_job_and_leaves_nothing(number: signal.Signals, here: Path) -> None:
    (here / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(100)\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "timonel", "train", "train.py", *QUICK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: any("up" in p.read_text() for p in here.glob(".timonel/jobs/*/logs/chief-0.log")))
    os.killpg(child.pid, number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    (line,) = err.splitlines()
    assert line.startswith("error: interrupted, train-")
    # The supervisor and what runs beside the job end after the job is seen to have ended.
    until(lambda: not others_in(here))


def others_in(folder: Path) -> list[psutil.Process]:
    """Return the processes, other than this one, that work in a folder."""
    found = psutil.process_iter(["cwd", "pid"])
    return [p for p in found if p.info["cwd"] == str(folder) and p.pid != os.getpid()]


def test_a_dry_run_prints_objects_and_creates_none(
    script: Path, timonel: Timonel, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = MemoryApi()
    monkeypatch.setattr(Api, "connect", lambda _: api)
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", "registry.example/timonel:1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(script.parent / "cache"))
    uri = f"memory://{uuid.uuid4().hex}"
    arguments = ("-w", uri, "train", script, "--workers", "3", "--on", "kubernetes", "--dry-run")
    outcome = timonel(*arguments)  # of a workspace that the run would create
    assert ObjectStore(uri).find() == {}
    assert not (script.parent / "cache").exists()
    planned = list(yaml.safe_load_all(outcome.out))
    find_workspace(uri)
    objects = list(yaml.safe_load_all(timonel(*arguments).out))
    assert [each["kind"] for each in planned] == [each["kind"] for each in objects]
    sizes = [each["spec"].get("completions") for each in objects if each["kind"] == "Job"]
    assert sizes == [None, 1, 2]  # of the coordinator, the chief and the workers
    assert json.loads(timonel(*arguments, "--json").out)["items"][0]["kind"] == "Job"
    assert api.used == set()
    assert ObjectStore(uri).find().keys() == {"FORMAT"}


def test_a_dry_run_with_a_new_workspace_on_a_claim(
    script: Path, timonel: Timonel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Api, "connect", lambda _: MemoryApi())
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", "registry.example/timonel:1")
    team = script.parent / "team"
    monkeypatch.setenv("TIMONEL_KUBERNETES_CLAIM", f"team:{team}")
    arguments = ("train", script, "--on", "kubernetes", "--dry-run")
    assert f"shared://{team}/ws" in timonel("-w", team / "ws", *arguments).out
    alone = script.parent / "alone"
    assert (
        f"{alone} is a folder that pods do not see" in timonel("-w", alone, *arguments).error_line
    )
    assert not team.exists()
    assert not alone.exists()


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ([], "the engine local creates none: add --on kubernetes"),
        (["--cluster", "cluster.json"], "--dry-run cannot be used with --cluster"),
    ],
)
def test_a_dry_run_is_for_clusters(
    argv: list[str], part: str, here: Path, timonel: Timonel, script: Path
) -> None:
    assert part in timonel("train", script, "--dry-run", *argv).error_line
    assert not (here / ".timonel").exists()


_TFJOB = """
apiVersion: kubeflow.org/v1
kind: TFJob
spec:
  tfReplicaSpecs:
    Worker:
      template: {spec: {containers: [{name: tensorflow, command: [python, /app/%s]}]}}
"""


@pytest.mark.parametrize(
    ("text", "argv", "part"),
    [
        (_TFJOB % "train.py", ["--workers", "2"], "--workers cannot be used with --file"),
        (_TFJOB % "absent.py", [], "no script absent.py beside tfjob.yaml"),
        (_TFJOB % "absent.py", ["--", "train.py"], "no script absent.py beside tfjob.yaml"),
        ("kind: Job", [], "got Job of None"),
    ],
)
def test_manifests_that_cannot_run_are_refused_before_anything_starts(
    text: str, argv: list[str], part: str, here: Path, timonel: Timonel, script: Path
) -> None:
    (here / "tfjob.yaml").write_text(text)
    outcome = timonel("train", "-f", "tfjob.yaml", *argv)
    assert outcome.exit_code == 2
    assert part in outcome.error_line
    assert nothing_started(here)


@pytest.mark.process
def test_a_job_of_a_manifest_is_a_job_like_others(
    here: Path, timonel: Timonel, script: Path
) -> None:
    (here / "tfjob.yaml").write_text(_TFJOB % "train.py")
    script.write_text("import sys\nprint('trained', *sys.argv[1:])\n")
    outcome = timonel("train", "-f", "tfjob.yaml", "--no-warm", "--", "--epochs", "3")
    assert outcome.exit_code == 0
    (job,) = json.loads(timonel("jobs", "--json").out)["jobs"]
    assert job["state"] == "succeeded"
    assert "trained --epochs 3" in timonel("logs").out


def test_a_manifest_is_no_program(here: Path, timonel: Timonel) -> None:
    (here / "mpijob.yaml").write_text("kind: MPIJob")
    line = timonel("train", "mpijob.yaml").error_line
    assert "mpijob.yaml is no Python program" in line
    assert "'timonel train -f mpijob.yaml'" in line


@pytest.mark.process
def test_notes_on_a_manifest_come_with_an_accepted_command_only(
    here: Path, timonel: Timonel, script: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (here / "tfjob.yaml").write_text(_TFJOB.replace("command", "image: a:1, command") % "train.py")
    assert "no dataset at" in timonel("train", "-f", "tfjob.yaml", "--data", "none").error_line
    assert "without effect" not in caplog.text
    assert timonel("train", "-f", "tfjob.yaml", "--no-warm").exit_code == 0
    assert "tfjob.yaml: fields without effect on this machine: image" in caplog.text


def test_a_dry_run_of_a_manifest_has_the_image_of_the_manifest(
    here: Path, timonel: Timonel, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Api, "connect", lambda _: MemoryApi())
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    text = _TFJOB.replace("tensorflow,", "tensorflow, image: mine:1,") % "train.py"
    (here / "tfjob.yaml").write_text(text)
    uri = f"memory://{uuid.uuid4().hex}"
    find_workspace(uri)
    outcome = timonel("-w", uri, "train", "-f", "tfjob.yaml", "--on", "kubernetes", "--dry-run")
    assert outcome.out.count("image: mine:1\n") == 2  # of the coordinator and the worker


def test_in_a_pipe_the_reason_for_waiting_is_a_line_of_its_own() -> None:
    message = "the coordinator cannot be scheduled: of 3 nodes, 3 lack free memory"
    pending = JobStatus(job_id="train-1", tasks=(TaskStatus(role="chief", index=0),))
    waiting = pending.model_copy(update={"message": message})
    running = waiting.model_copy(update={"state": JobState.RUNNING})
    statuses = iter([pending, waiting, waiting, running])
    file = io.StringIO()
    run: Any = SimpleNamespace(job=SimpleNamespace(status=lambda: next(statuses)))
    ended = _ended(run, TrainingView(), Console(file=file, width=40))
    assert not any(ended() for _ in range(4))
    assert file.getvalue().splitlines() == ["chief pending", message]


def test_a_switch_needs_no_value() -> None:
    assert parse_params(["augment", "lr=0.1", "empty="]) == {
        "augment": "true",
        "lr": "0.1",
        "empty": "",
    }
