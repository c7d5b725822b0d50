from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from timonel.errors import JobError, SpecError
from timonel.processes.ports import PortReservation
from timonel.storage import Workspace
from timonel.tracking import list_runs, open_run
from timonel.training import rendezvous
from timonel.training.cluster import Cluster
from timonel.training.request import JobOptions, TrainingRequest, check_request
from timonel.training.settings import Settings
from timonel.training.spec import TrainSpec, read_spec

OPTIONS = JobOptions(seed=3)


def request(script: Path, **changes: Any) -> TrainingRequest:
    options = {"data": None, "settings": Settings(), "params": {}, "args": ("1",), **changes}
    return check_request(script, **options)  # type: ignore[arg-type] # the values fit


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import keras\n")
    return path


def lead(script: Path, workspace: Workspace, **changes: Any) -> TrainSpec:
    return rendezvous.lead(request(script, **changes), workspace, "train-abc", OPTIONS)


def no_wait(_: float) -> None:
    return None


def test_a_cluster_and_a_name_have_runs_of_their_own() -> None:
    tasks = {"chief": ("a:1",), "worker": ("b:1",)}
    prefix = rendezvous.run_prefix(tasks, None)
    assert prefix == rendezvous.run_prefix(
        {role: list(found) for role, found in tasks.items()}, None
    )
    assert prefix != rendezvous.run_prefix(tasks, "other")
    assert prefix != rendezvous.run_prefix({"chief": ("a:1",)}, None)


def test_a_run_goes_on_until_it_has_an_end(script: Path, workspace: Workspace) -> None:
    first = lead(script, workspace)
    assert first.run_id == "train-abc-1"
    assert lead(script, workspace) == first
    # as if it had been killed before it wrote this
    (workspace.runs / first.run_id / "train.json").unlink()
    assert lead(script, workspace) == first
    open_run(workspace, "train-abc-1").finish("failed", "m", "user-error")
    assert lead(script, workspace).run_id == "train-abc-2"
    assert len(list_runs(workspace)) == 2


def test_the_others_wait_for_the_chief(script: Path, workspace: Workspace) -> None:
    lead(script, workspace)
    open_run(workspace, "train-abc-1").finish("succeeded")
    (workspace.jobs / "train-abc-1" / "tasks" / "worker-0").mkdir(parents=True)  # it was in it
    waited: list[float] = []

    def start_chief(seconds: float) -> None:
        waited.append(seconds)
        lead(script, workspace)

    ours = JobOptions(seed=99)
    told = rendezvous.follow(request(script), workspace, "train-abc", ours, "worker-0", start_chief)
    assert waited == [0.5]
    assert told.run_id == "train-abc-2"  # not the one that has ended
    assert told.seed == 3  # the chief's


def test_a_long_wait_for_the_chief_is_shown(
    script: Path, workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if sum(waited) < 5:
            assert not caplog.records
        elif sum(waited) > 6:
            lead(script, workspace)

    rendezvous.follow(request(script), workspace, "train-abc", OPTIONS, "worker-0", wait)
    (shown,) = [record.getMessage() for record in caplog.records]
    assert shown == f"worker-0 waits for the chief's run train-abc-... in {workspace.root}"


def test_tasks_that_do_not_answer_are_shown_until_the_task_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendezvous, "_SILENT_S", 0.05)
    ready = tmp_path / "ready"

    def shown() -> list[str]:
        return [record.getMessage().partition(" waits for ")[2] for record in caplog.records]

    with PortReservation(4) as (chief, first, second, aside):
        tasks = {"chief": (chief,), "worker": (first, second), "evaluator": (aside,)}
        cluster = Cluster(tasks, "chief", 0)
        host, port = first.split(":")
        with rendezvous.naming_missing_tasks(cluster, ready):
            until(lambda: len(shown()) == 1)
            with socket.create_server((host, int(port))):
                until(lambda: len(shown()) == 2)
                ready.touch()
        with rendezvous.naming_missing_tasks(Cluster(tasks, "evaluator", 0), tmp_path / "none"):
            time.sleep(0.2)
    hint = ": start each with its --task-type and --task-index"
    assert shown() == [
        f"worker-0 ({first}), worker-1 ({second}){hint}",
        f"worker-1 ({second}){hint}",
    ]


def test_a_run_that_has_just_ended_is_missed_once(
    script: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(script, workspace)
    open_run(workspace, "train-abc-1").finish("failed", "m", "user-error")
    asked = request(script)
    with pytest.raises(rendezvous.AlreadyEndedError, match=r"train-abc-1 ended \(failed\) before"):
        rendezvous.follow(asked, workspace, "train-abc", OPTIONS, "worker-0", no_wait)

    def start_chief(_: float) -> None:
        lead(script, workspace)

    told = rendezvous.follow(asked, workspace, "train-abc", OPTIONS, "worker-0", start_chief)
    assert told.run_id == "train-abc-2"
    open_run(workspace, "train-abc-2").finish("succeeded")
    now = time.time() + 301
    monkeypatch.setattr(rendezvous.time, "time", lambda: now)  # nobody has waited for it as long
    told = rendezvous.follow(asked, workspace, "train-abc", OPTIONS, "worker-1", start_chief)
    assert told.run_id == "train-abc-3"


def test_each_task_has_its_own_path_of_the_script(
    script: Path, workspace: Workspace, tmp_path: Path
) -> None:
    lead(script, workspace)
    elsewhere = tmp_path / "elsewhere" / "train.py"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(script.read_bytes())
    told = rendezvous.follow(
        request(elsewhere), workspace, "train-abc", OPTIONS, "worker-0", no_wait
    )
    assert told.script == str(elsewhere)
    assert read_spec(workspace.runs / "train-abc-1" / "train.json").script == str(script)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"args": ("2",)}, "args"),
        ({"params": {"lr": 1}}, "params"),
        ({"settings": Settings.of({"xla": True})}, "settings"),
    ],
)
def test_all_tasks_are_asked_for_the_same(
    script: Path, workspace: Workspace, changes: dict[str, Any], field: str
) -> None:
    lead(script, workspace)
    with pytest.raises(SpecError, match=f"{field} differs from the unfinished run train-abc-1"):
        rendezvous.follow(
            request(script, **changes), workspace, "train-abc", OPTIONS, "worker-0", no_wait
        )
    with pytest.raises(SpecError, match=f"{field} differs from the unfinished run train-abc-1"):
        lead(script, workspace, **changes)


def test_no_chief_comes(script: Path, workspace: Workspace) -> None:
    with pytest.raises(JobError, match=r"chief started no run train-abc-\.\.\. in .* within 300 s"):
        rendezvous.follow(request(script), workspace, "train-abc", OPTIONS, "worker-0", no_wait)
    assert list_runs(workspace) == []
