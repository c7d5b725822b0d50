"""Studies of real jobs: results, limits, kills and bad input."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.tuning.conftest import SCRIPT
from timonel.engines import get_engine
from timonel.errors import (
    AlreadyExistsError,
    Interrupted,
    NotFoundError,
    SpecError,
    UserCodeError,
)
from timonel.storage import Workspace
from timonel.tracking import list_runs
from timonel.tuning import Study, list_studies, open_study, resume, tune
from timonel.tuning.controller import StudyController

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
X = "x=float(0,1)"


def study(workspace: Workspace, name: str, *space: str, **options: Any) -> Study:
    options = {"algorithm": "random", "seed": 1, "metric": "score", **options}
    return tune(SCRIPT, list(space or (X,)), study=name, workspace=workspace, **options)


def until(true: Callable[[], Any], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_study_finds_its_best_trial(workspace: Workspace) -> None:
    found = study(workspace, "best", X, "epochs=3", trials=4, parallel=2)
    trials = found.trials
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert {trial.status for trial in trials} == {"succeeded"}
    for trial in trials:
        x = float(trial.params["x"])
        assert trial.params["epochs"] == 3
        assert trial.values == pytest.approx((-((x - 0.3) ** 2) - 1 / 3,))
        assert [step for step, _ in trial.curve] == [0, 1, 2]
        run = found.run_of(trial).record
        assert run.parent == "best"
        assert float(run.params["x"]) == x
    best = max(trials, key=lambda trial: trial.values)
    assert [trial.number for trial in found.best_trials] == [best.number]
    assert found.best_run.id == best.run_id
    assert trials[1].started_at < (trials[0].ended_at or 0), "two trials ran at the same time"
    assert list_studies(workspace)[0].name == "best"
    frame = found.to_dataframe()
    assert list(frame["score"]) == [trial.values[0] for trial in trials]
    with pytest.raises(AlreadyExistsError, match="the study best exists: continue"):
        study(workspace, "best", X, "epochs=3", trials=1)
    with pytest.raises(AlreadyExistsError, match="best exists with another search space"):
        study(workspace, "best", X, trials=1)


def test_more_trials_continue_a_study(workspace: Workspace) -> None:
    study(workspace, "more", trials=1)
    found = resume("more", trials=2, workspace=workspace)
    assert [trial.status for trial in found.trials] == ["succeeded"] * 2
    assert len({trial.params["x"] for trial in found.trials}) == 2
    assert open_study(workspace, "more").settings.trials == 2


def test_a_study_of_a_function_is_resumed_with_the_same_function(workspace: Workspace) -> None:
    offset = 0.3

    def parabola(x: float, count: int) -> None:
        from timonel.training import report

        assert isinstance(count, int)
        report({"score": -((x - offset) ** 2)}, step=0)

    found = tune(
        parabola, [X, "count=2"], "score", study="function", trials=1, algorithm="random", seed=1,
        workspace=workspace,
    )  # fmt: skip
    del parabola
    offset = math.nan  # the trials have their own
    found = resume("function", trials=2, workspace=workspace)
    for trial in found.trials:
        assert trial.values == pytest.approx((-((float(trial.params["x"]) - 0.3) ** 2),))
    assert found.facts(found.trials)["script"].endswith("parabola")
    with pytest.raises(SpecError, match="do not match the arguments"):
        tune(lambda y: None, [X], "score", study="wrong", workspace=workspace)
    assert "wrong" not in [each.name for each in list_studies(workspace)]


def test_a_study_is_resumed_where_it_was_started(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(workspace, "moved", trials=1)
    here = Path.cwd()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=f"was started in {here}"):
        resume("moved", trials=2, workspace=workspace)
    assert len(open_study(workspace, "moved").trials) == 1


def test_minimize_several_objectives(workspace: Workspace) -> None:
    found = study(
        workspace, "pareto", metric=["loss", "score"], goal=["minimize", "maximize"], trials=2
    )
    assert all(trial.values[0] == -trial.values[1] for trial in found.trials)
    # One is the negative of the other: the same trial is best in both.
    assert len(found.best_trials) == 1
    with pytest.raises(SpecError, match="several best trials"):
        _ = found.best_run


def test_constraints_hold_in_all_jobs(workspace: Workspace) -> None:
    found = study(workspace, "constrained", X, constraints=["x >= 0.5"], trials=3)
    jobs = [trial for trial in found.trials if trial.run_id]
    assert len(jobs) == 3
    assert all(float(trial.params["x"]) >= 0.5 for trial in jobs)


def test_trials_beyond_a_threshold_are_never_the_best(workspace: Workspace) -> None:
    found = study(
        workspace, "threshold", "x=values(0.3,0.4,0.9)",
        algorithm="grid", trials=3, thresholds=["loss >= 0.505", "score >= -1"],
    )  # fmt: skip
    trials = {float(trial.params["x"]): trial for trial in found.trials}
    assert {x: trial.status for x, trial in trials.items()} == {
        0.3: "infeasible", 0.4: "succeeded", 0.9: "succeeded"
    }  # fmt: skip
    assert trials[0.3].reason == "loss is 0.5, below 0.505"
    assert trials[0.3].values == (-0.5,)
    assert found.best_trials == [trials[0.4]]
    assert found.load().best_trial.number == trials[0.4].number, "Optuna knows it too"
    with pytest.raises(SpecError, match="recorded no metric 'latency'") as caught:
        study(workspace, "no-latency", thresholds=["latency <= 1"], trials=1)
    assert "name one of them with --threshold" in (caught.value.hint or "")


def test_more_trials_than_cores_are_warned_of(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    study(workspace, "few", trials=1, parallel=1)
    assert "parallel processes share" not in caplog.text
    study(workspace, "many", trials=1, parallel=1000)
    assert caplog.text.count("1000 parallel processes share") == 1


def test_a_study_starts_from_another_and_from_a_run(workspace: Workspace) -> None:
    earlier = study(workspace, "before", algorithm="qmc", trials=4, parallel=2)
    best = earlier.best_trials[0]
    found = study(
        workspace, "after", algorithm="bayesian", trials=2,
        start_from=["before", earlier.best_run.id],
    )  # fmt: skip
    assert len(found.priors) == 4
    assert [trial.number for trial in found.trials] == [4, 5]
    assert found.trials[0].params == best.params
    assert found.trials[1].params != best.params
    assert resume("after", trials=3, workspace=workspace).trials[2].number == 6


def test_a_metric_that_is_never_recorded_ends_the_study(workspace: Workspace) -> None:
    with pytest.raises(SpecError, match="recorded no metric 'accuracy'") as caught:
        study(workspace, "metric", metric="accuracy", trials=5)
    assert "it recorded: loss, score" in (caught.value.hint or "")
    assert len(open_study(workspace, "metric").trials) == 1
    with pytest.raises(SpecError, match="recorded no metric 'scores'") as caught:
        study(workspace, "typo", metric="scores", trials=1)
    assert caught.value.hint == "did you mean 'score'?"


def test_failures_at_the_start_end_the_study(workspace: Workspace) -> None:
    with pytest.raises(UserCodeError, match=r"the first 3 trials failed.*x is too large"):
        study(workspace, "failing", "x=float(0.5,1)", "fail-above=0", trials=9)
    found = open_study(workspace, "failing")
    assert [trial.status for trial in found.trials] == ["failed"] * 3
    with pytest.raises(NotFoundError, match="no trial of the study failing has succeeded"):
        _ = found.best_run


def test_failed_trials_are_counted(workspace: Workspace) -> None:
    found = study(workspace, "some", "x=float(0.5,1)", "fail-above=0", trials=9, max_failed=1)
    assert len(found.trials) == 1


def test_a_refused_flag_is_named(workspace: Workspace) -> None:
    with pytest.raises(UserCodeError, match="unrecognized arguments: --y"):
        study(workspace, "flag", X, "y=int(1,3)", trials=3)


def test_an_objective_that_is_not_a_number_is_infeasible(workspace: Workspace) -> None:
    found = study(workspace, "nan", "x=values(0,1)", "nan-below=0.5", algorithm="grid", trials=5)
    assert {trial.params["x"]: trial.status for trial in found.trials} == {
        0: "infeasible",
        1: "succeeded",
    }
    assert found.best_trials[0].params["x"] == 1


def test_bad_trials_are_stopped_early(workspace: Workspace) -> None:
    found = study(
        workspace,
        "early",
        "x=values(0.3,0.31,0.32,0.33,0.34,0.35,9.0)",
        "epochs=12",
        "pause=0.3",
        algorithm="grid",
        stopping_rule="median",
        trials=7,
        parallel=2,
    )
    stopped = [trial for trial in found.trials if trial.status == "stopped early"]
    assert found.best_trials[0].status == "succeeded"
    for trial in stopped:
        assert len(trial.curve) < 12
        assert "by median" in trial.reason
        assert found.run_of(trial).record.status == "stopped"


def test_stopping_rules_compare_with_feasible_trials_only(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    class Rule:
        def should_stop(self, curve: Any, completed: Any, others_running: Any = ()) -> bool:
            compared.append(len(completed))
            return False

    monkeypatch.setattr("timonel.tuning.launch.make_rule", lambda *_, **__: Rule())
    found = study(
        workspace, "infeasible", X, "epochs=3", "pause=0.5",
        trials=2, stopping_rule="median", thresholds=["loss >= 1e9"],
    )  # fmt: skip
    assert [trial.status for trial in found.trials] == ["infeasible"] * 2
    assert set(compared) == {0}


def test_a_killed_study_adopts_its_trials(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys; from timonel.tuning import tune\n"
        f"tune({str(SCRIPT)!r}, ['x=float(0,1)', 'epochs=6', 'pause=0.5'], 'score',\n"
        "     study='killed', trials=4, parallel=2, algorithm='random', seed=3,\n"
        f"     workspace={str(workspace.root)!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path)
    file = workspace.studies / "killed" / "study.json"
    until(lambda: file.exists() and len(open_study(workspace, "killed").trials) >= 2)
    until(lambda: all(t.run_id for t in open_study(workspace, "killed").trials))
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = open_study(workspace, "killed")
    before = {trial.number: trial.params for trial in found.trials}
    # A process that it was starting may hold the lock for a moment.
    until(lambda: not open_study(workspace, "killed").is_running)
    with (found.folder / "journal.log").open("a") as journal:
        journal.write('{"op_code": 4, "wor')  # as if killed while writing
    monkeypatch.chdir(tmp_path)
    found = resume("killed", workspace=workspace)
    trials = found.trials
    assert [(trial.status, trial.reason) for trial in trials] == [("succeeded", "")] * 4
    assert {number: trials[number].params for number in before} == before
    runs = [trial.run_id for trial in trials]
    assert len(set(runs)) == 4
    jobs = {job.job_id for job in get_engine("local", workspace).jobs()}
    assert set(runs) <= jobs
    ran = [
        run.id
        for run in list_runs(workspace)
        if run.parent == "killed" and run.status == "succeeded"
    ]
    assert sorted(ran) == sorted(filter(None, runs)), "no trial ran twice"


def test_a_stopped_study_continues_its_trials(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "timonel", "-w", str(workspace.root), "tune", str(SCRIPT)]
    options = ["--param", X, "--param", "epochs=4", "--param", "pause=0.5", "--metric", "score"]
    process = subprocess.Popen(
        [*command, *options, "--trials", "2", "--study", "stopped", "--algorithm", "random"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    file = workspace.studies / "stopped" / "study.json"
    until(lambda: file.exists() and any(t.curve for t in open_study(workspace, "stopped").trials))
    found = open_study(workspace, "stopped")
    assert found.is_running
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="another process runs the study stopped"):
        resume("stopped", workspace=workspace)
    found.stop()
    output = process.communicate(timeout=120)[0]
    assert process.returncode == Interrupted.exit_code
    assert "the study stopped was stopped" in output
    found = resume("stopped", workspace=workspace)
    assert [trial.status for trial in found.trials] == ["succeeded"] * 2
    assert len(found.trials[0].curve) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "must be positive"),
        ({"parallel": 0}, "--parallel must be at least 1, got 0"),
        ({"algorithm": "bayes"}, "bayes"),
        ({"stopping_rule": "mean"}, "expected stopping_rule= as 'none' or 'median'"),
        ({"goal": "max"}, "expected goal= as 'maximize' or 'minimize'"),
        ({"metric": ["a", "a"]}, "name each metric once"),
        ({"metric": ["a", "b"], "goal": ["maximize"] * 3}, "2 metrics need as many goals, got 3"),
        ({"study": "a/b"}, "the study's name is invalid"),
        ({"study": "last"}, "'last' means the newest study"),
        ({"cluster": "c.json"}, "studies do not support --cluster"),
    ],
)
def test_bad_options_are_refused_before_anything_is_made(
    workspace: Workspace, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        tune(SCRIPT, [X], **{"metric": "score", "study": "bad", "workspace": workspace, **options})
    assert not (workspace.studies / "bad").exists()


CONTINUED = """
hyperparameters:
  resumePreviousJobId: previous
  maxTrials: 2
  params:
  - {parameterName: x, type: DOUBLE, minValue: 0, maxValue: HIGH}
"""


def test_a_configuration_continues_the_study_of_an_earlier_job(
    workspace: Workspace, tmp_path: Path
) -> None:
    study(workspace, "previous", trials=1)
    config = tmp_path / "tuning.yaml"
    command = [sys.executable, "-m", "timonel", "-w", str(workspace.root)]

    def continued(high: str) -> subprocess.CompletedProcess[str]:
        config.write_text(CONTINUED.replace("HIGH", high))
        return subprocess.run(
            [*command, "tune", "--config", str(config)], capture_output=True, text=True, check=False
        )

    refused = continued("2")
    assert refused.returncode == SpecError.exit_code
    assert "the parameters differ from those of the study previous" in refused.stderr
    assert len(open_study(workspace, "previous").trials) == 1
    done = continued("1")
    assert done.returncode == 0, done.stderr
    trials = open_study(workspace, "previous").trials
    assert [trial.status for trial in trials] == ["succeeded"] * 3


def test_studies_that_do_not_exist(workspace: Workspace) -> None:
    with pytest.raises(NotFoundError, match="no study 'nothing' in this workspace"):
        open_study(workspace, "nothing")


def test_a_dropped_proposal_is_no_trial_and_its_point_is_tried(workspace: Workspace) -> None:
    first = study(workspace, "point", trials=1)
    found = study(workspace, "dropped", trials=1, start_from=[first.best_run.id])
    found.load().enqueue_trial({"x": 0.125})
    found.load().ask()  # as if killed before the values were stored
    found = resume("dropped", trials=2, workspace=workspace)
    assert [(trial.number, trial.status) for trial in found.trials] == [
        (0, "succeeded"), (2, "succeeded")
    ]  # fmt: skip
    assert found.trials[1].params["x"] == 0.125


@pytest.mark.parametrize("steps", ["-1", str(2**40)])
def test_steps_that_storages_refuse(workspace: Workspace, tmp_path: Path, steps: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from timonel.training import report\n"
        f"report({{'score': 1.0}}, step={steps})\n"
    )  # fmt: skip
    found = tune(script, ["x=float(0,1)"], "score", trials=1, study=f"step{steps}",
                 workspace=workspace)  # fmt: skip
    assert [(trial.status, trial.values, trial.curve) for trial in found.trials] == [
        ("succeeded", (1.0,), ())
    ]


def test_the_next_controller_stops_a_trial_that_a_rule_gave_up(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(event: str, *_: object) -> None:
        if event == "started":
            raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(StudyController, "_stop_all", lambda _: None)  # its job goes on
        with pytest.raises(RuntimeError, match="killed"):
            study(workspace, "halted", X, "epochs=300", "pause=0.1", trials=1, notify=kill)
    found = open_study(workspace, "halted").load()
    live = optuna.Trial(found, found.get_trials()[0]._trial_id)
    live.set_user_attr("reason", "stopped early at step 0 by median")
    assert [trial.status for trial in resume("halted", workspace=workspace).trials] == [
        "stopped early"
    ]


def test_a_misspelled_parameter_is_told_once(workspace: Workspace, tmp_path: Path) -> None:
    """Its script takes what it knows, so the trials succeed and differ in nothing."""
    script = tmp_path / "lenient.py"
    script.write_text(
        "import argparse\n"
        "from timonel.training import report\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--learning-rate', type=float, default=0.1)\n"
        "args, _ = parser.parse_known_args()\n"
        "report({'score': args.learning_rate}, step=0)\n"
    )
    told: list[str] = []

    def notify(event: str, _: int, facts: Any) -> None:
        if event == "warning":
            told.append(facts["message"])

    tune(
        script, ["learning_rate=float(0,1)"], "score", trials=2, study="lenient",
        workspace=workspace, algorithm="random", notify=notify,
    )  # fmt: skip
    assert len(set(told)) == len(told), "each warning once for all trials"
    assert sum("does not know --learning_rate" in message for message in told) == 1
