"""Studies of a workspace in a bucket, seen and continued from several machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.buckets import open_bucket
from tests.tuning.conftest import SCRIPT
from tests.waiting import until
from timonel.engines import JobState, get_engine
from timonel.errors import AlreadyExistsError, JobError, NotFoundError, SpecError
from timonel.storage import Workspace, find_workspace
from timonel.tracking import list_runs
from timonel.training.jobs import list_jobs
from timonel.tuning import Study, lease, list_studies, open_study, resume, tune
from timonel.tuning.controller import StudyController
from timonel.tuning.lease import ControllerLease, LostStudyError

pytestmark = [pytest.mark.enable_socket, pytest.mark.process, pytest.mark.timeout(300)]
Machine = Callable[[str], Workspace]


@pytest.fixture
def machine(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    """Open a workspace in a bucket as on several machines, each with a cache of its own."""
    monkeypatch.setenv("TIMONEL_MIRRORS", "none")
    opened = open_bucket("s3", request, monkeypatch)
    uri = next(opened)
    used: list[Workspace] = []

    def machine(name: str) -> Workspace:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        used.append(find_workspace(uri))
        return used[-1]

    yield machine
    for workspace in used:
        engine = get_engine("local", workspace)
        for job in engine.jobs():
            if not job.state.is_final:
                engine.cancel(job.job_id)
    next(opened, None)


def study(workspace: Workspace, name: str, *fixed: str, **options: Any) -> Study:
    space = ["x=values(0.1,0.3,0.9)", *fixed]
    options = {"algorithm": "grid", "metric": "score", **options}
    return tune(SCRIPT, space, study=name, workspace=workspace, **options)


def start_and_die(workspace: Workspace, name: str, *fixed: str) -> None:
    """Start a trial, and leave it running as a controller that is killed."""

    def kill(event: str, *_: object) -> None:
        if event == "started":
            raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StudyController, "_stop_all", lambda _: None)
        patched.setattr(ControllerLease, "held", _held_until_death)
        with pytest.raises(RuntimeError, match="killed"):
            study(workspace, name, *fixed, trials=1, notify=kill)


def has_metrics(workspace: Workspace) -> bool:
    """Whether a trial has reported metrics, by what the bucket has."""
    assert workspace.local_copy is not None
    workspace.local_copy.runs.pull()
    events = (event for run in list_runs(workspace) for event in run.events())
    return any(event["type"] == "metrics" for event in events)


@contextlib.contextmanager
def _held_until_death(held: ControllerLease) -> Iterator[None]:
    """Hold a lease that is neither renewed nor released."""
    held._acquire(lambda _: None)
    yield


def test_a_study_is_shown_and_continued_elsewhere(machine: Machine, tmp_path: Path) -> None:
    made = study(machine("a"), "shared", trials=2, parallel=2)
    there = machine("b")
    (found,) = list_studies(there)
    assert (found.name, found.trials, found.is_running) == ("shared", made.trials, False)
    assert len(found.trials) == 2
    assert found.best_run.record.metrics == made.best_run.record.metrics
    found.plot(tmp_path / "shared.html")
    with pytest.raises(AlreadyExistsError, match="the study shared exists: continue"):
        study(there, "shared", trials=1)
    with pytest.raises(NotFoundError, match="no study 'other'"):
        open_study(there, "other")
    continued = resume("shared", trials=3, workspace=there)
    assert [trial.status for trial in continued.trials] == ["succeeded"] * 3
    here = machine("a")
    assert open_study(here, "shared").trials == continued.trials
    assert open_study(here, "shared").settings.trials == 3


def test_a_trial_that_ended_without_its_controller_is_not_repeated(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("a")
    start_and_die(here, "left")
    until(lambda: all(job.state is JobState.SUCCEEDED for job in list_jobs(here)), poll_s=0.5)
    there = machine("b")
    until(lambda: list_runs(there)[0].is_finished, poll_s=0.5)
    monkeypatch.setattr(lease, "SILENT_S", 1.0)
    found = resume("left", workspace=there)
    (trial,) = found.trials
    assert (trial.status, trial.params["x"], len(trial.curve)) == ("succeeded", 0.1, 2)
    assert [run.id for run in list_runs(there)] == [trial.run_id]


def test_a_trial_that_still_runs_elsewhere_is_left_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("a")
    start_and_die(here, "busy", "epochs=9000", "pause=0.1")
    there = machine("b")
    until(lambda: has_metrics(there))
    monkeypatch.setattr(lease, "SILENT_S", 0.0)
    found = open_study(there, "busy")
    with pytest.raises(JobError, match=r"runs on the machine .*, not on this one"):
        found.stop()
    with pytest.raises(JobError, match="still runs on another machine"):
        resume("busy", workspace=there)
    assert [job.state.is_final for job in get_engine("local", here).jobs()] == [False]
    assert [trial.status for trial in open_study(there, "busy").trials] == ["running"]


def test_a_controller_that_was_cut_off_leaves_the_study_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = machine("b"), machine("a")  # whose cache the jobs use
    stopped: list[StudyController] = []

    def stop_all(controller: StudyController) -> None:
        stopped.append(controller)

    monkeypatch.setattr(StudyController, "_stop_all", stop_all)
    monkeypatch.setattr(lease, "SILENT_S", 0.0)

    def take_over(event: str, *_: object) -> None:
        if event == "progress":
            successor = open_study(there, "cut").transfer
            assert successor is not None
            with successor.lease.held():
                pass

    with pytest.raises(LostStudyError, match="the study cut continues on the machine"):
        study(here, "cut", trials=3, notify=take_over)
    assert stopped == []
    assert len(open_study(there, "cut").trials) == 1, "it started no other trial"


def test_a_study_that_another_machine_runs_is_refused(machine: Machine) -> None:
    there, here = machine("b"), machine("a")  # whose cache the jobs use
    refusals: list[str] = []

    def try_there(event: str, *_: object) -> None:
        if event == "started":
            found = open_study(there, "once")
            assert found.is_running
            try:
                resume("once", workspace=there)
            except SpecError as error:
                refusals.append(str(error))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lease, "RENEW_S", 0.2)
        study(here, "once", trials=1, notify=try_there)
    (refusal,) = refusals
    assert "runs the study once: follow it with" in refusal


def test_a_study_is_stopped_from_another_machine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timonel.errors import Interrupted

    there, here = machine("b"), machine("a")  # whose cache the jobs use
    monkeypatch.setattr(lease, "RENEW_S", 0.2)

    def stop_there(event: str, *_: object) -> None:
        if event == "started":
            open_study(there, "halted").stop()

    with pytest.raises(Interrupted, match="the study halted was stopped"):
        study(here, "halted", "epochs=9000", "pause=0.1", trials=1, notify=stop_there)
    assert all(job.state is JobState.STOPPED for job in get_engine("local", here).jobs())
    assert [trial.status for trial in open_study(there, "halted").trials] == ["running"]
