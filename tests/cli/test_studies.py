"""Studies that have ended or were interrupted, on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from optuna.trial import TrialState

from tests.cli.conftest import Timonel
from tests.tuning.test_plots import study as recorded_study
from timonel.errors import JobError
from timonel.storage import find_workspace
from timonel.tuning import Study, launch

DONE, FAILED, RUNNING = TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING


def study(here: Path, monkeypatch: pytest.MonkeyPatch, *states: TrialState) -> Study:
    """Return a study that no process runs, with a trial in each state."""
    workspace = find_workspace(here / "workspace", create=True)
    monkeypatch.setenv("TIMONEL_WORKSPACE", str(workspace.root))
    monkeypatch.setenv("COLUMNS", "100")
    return recorded_study(here, len(states), states=states)


@pytest.mark.parametrize(
    ("states", "status", "words"),
    [
        ((DONE, FAILED, FAILED), "ended", ["succeeded", "failed", "failed"]),
        ((FAILED, FAILED, RUNNING), "interrupted", ["failed", "failed", "unfinished"]),
    ],
)
def test_a_study_shows_its_status_and_the_reasons_of_failures(
    timonel: Timonel,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    states: Sequence[TrialState],
    status: str,
    words: Sequence[str],
) -> None:
    found = study(here, monkeypatch, *states)
    outcome = timonel("studies", "show")
    assert outcome.exit_code == 0, outcome
    lines = [line.split() for line in outcome.out.splitlines()]
    assert ["status", status] in lines
    table = [line for line in lines if line and line[0].isdecimal()]
    assert [line[1] for line in table] == words
    first, second = [trial.number for trial in found.trials if trial.status == "failed"]
    assert lines[-1] == ["trial", f"{first},", str(second), "<boom>"]
    assert status in timonel("studies").out


def test_a_study_whose_database_is_gone_does_not_hide_the_others(
    timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = study(here, monkeypatch, DONE)
    options = {**found.settings.options, "storage": "postgresql://user@127.0.0.1:1/none"}
    gone = found.settings.model_copy(update={"name": "gone", "options": options})
    Study(found.workspace, gone).save()
    outcome = timonel("studies")
    assert outcome.exit_code == 0
    states = [line.split()[:2] for line in outcome.out.splitlines()[1:]]
    assert sorted(states) == [["gone", "unreachable"], ["seen", "ended"]]
    assert timonel("studies", "show", "gone").error_line.endswith(
        "refused: check the address, the user, the password and the database"
    )


@pytest.mark.parametrize(("state", "runs"), [(DONE, False), (RUNNING, True)])
def test_stop_only_stops_what_has_not_ended(
    timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch, state: TrialState, runs: bool
) -> None:
    found = study(here, monkeypatch, state)
    outcome = timonel("studies", "stop")
    assert outcome.exit_code == 0
    assert ("is not running" in outcome.out) is not runs
    assert found.stop_file.exists() is runs


@pytest.mark.parametrize(("trials", "said"), [((), True), (("--trials", 5), False)])
def test_resume_says_if_nothing_is_left(
    timonel: Timonel,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    trials: Sequence[object],
    said: bool,
) -> None:
    found = study(here, monkeypatch, DONE, DONE)
    monkeypatch.setattr(launch, "resume", lambda *_, **__: found)
    outcome = timonel("studies", "resume", *trials)
    assert outcome.exit_code == 0
    assert ("all 2 trials have run" in outcome.out + outcome.err) is said


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_study_without_a_result_is_an_error(
    timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch, options: Sequence[str]
) -> None:
    found = study(here, monkeypatch, FAILED, FAILED)
    monkeypatch.setattr(launch, "resume", lambda *_, **__: found)
    outcome = timonel("studies", "resume", "--trials", 3, *options)
    assert outcome.exit_code == JobError.exit_code
    assert "no trial of the study seen has succeeded: 'timonel studies show seen'" in outcome.err
    assert outcome.out.startswith("{") is bool(options)
