"""The list of runs, one run in full, and both as JSON."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from tests.cli.test_render import plain
from timonel.cli.render.runs import run_list
from timonel.storage import find_workspace
from timonel.tracking import Artifact, list_runs, start_run


@pytest.fixture
def run_id(here: Path) -> str:
    """A training run with two curves, one of which diverges."""
    with start_run(
        find_workspace(here / ".timonel"), "train", name="digits", params={"lr": 0.01}
    ) as run:
        for epoch, loss in enumerate([2.0, 1.0, math.nan]):
            run.metrics({"loss": loss, "accuracy": epoch / 4}, epoch=epoch)
        run.input(Artifact("dataset", here / "data", "sha256:" + "ab" * 32))
        run.output(Artifact("savedmodel", here / "export", None))
        return run.run_id


def test_the_list_shows_what_came_out(timonel: Timonel, run_id: str) -> None:
    outcome = timonel("runs")
    assert outcome.exit_code == 0
    (line,) = [line for line in outcome.out.splitlines() if run_id in line]
    assert "succeeded" in line
    assert "accuracy 0.5" in line


def test_the_list_as_json(timonel: Timonel, run_id: str) -> None:
    for argv in (["runs", "--json"], ["runs", "list", "--json", "--kind", "train"]):
        (run,) = json.loads(timonel(*argv).out)["runs"]
        assert run["id"] == run_id
        assert set(run) == {
            "id", "kind", "name", "status", "message", "cause", "started_at", "ended_at",
            "duration_s", "restarts", "job_id", "params", "metrics", "inputs", "outputs", "folder",
        }  # fmt: skip
        assert run["metrics"] == {"loss": "nan", "accuracy": 0.5}
    assert json.loads(timonel("runs", "--kind", "convert", "--json").out) == {"runs": []}


def test_one_run_has_its_curves(timonel: Timonel, run_id: str) -> None:
    out = timonel("runs", "show", "digits").out
    assert run_id in out
    assert "█▁·" in out
    assert "▁▄█" in out or "▁▅█" in out
    assert "abababababab" in out
    assert "lr" in out


def test_one_run_as_json_has_every_value(timonel: Timonel, run_id: str) -> None:
    run = json.loads(timonel("runs", "show", run_id, "--json").out)
    assert [point["epoch"] for point in run["series"]["loss"]] == [0, 1, 2]
    assert run["series"]["loss"][2]["value"] == "nan"
    assert {"command", "environment", "git"} <= set(run)


def test_an_unknown_run_is_one_line(timonel: Timonel, run_id: str) -> None:
    outcome = timonel("runs", "show", "nope")
    assert outcome.exit_code == 2
    assert "'timonel runs' lists" in outcome.error_line


def test_no_workspace_is_one_line_and_none_is_made(here: Path, timonel: Timonel) -> None:
    outcome = timonel("runs")
    assert outcome.exit_code == 2
    assert "no workspace" in outcome.error_line
    assert list(here.iterdir()) == []


def test_a_workspace_of_a_newer_format_is_refused(here: Path, timonel: Timonel) -> None:
    (here / ".timonel").mkdir()
    (here / ".timonel" / "FORMAT").write_text('{"kind": "workspace", "format": 99}')
    outcome = timonel("runs")
    assert outcome.exit_code == 4
    assert "upgrade timonel" in outcome.error_line


@pytest.fixture
def history(here: Path) -> dict[str, str]:
    """Two trainings, one of which became a model version; by name."""
    workspace = find_workspace(here / ".timonel")
    ids = {}
    for name, lr, loss in (("slow", 0.01, 1.5), ("fast", 0.1, 0.5)):
        with start_run(workspace, "train", name=name, params={"lr": lr, "epochs": 3}) as run:
            run.metrics({"loss": loss}, epoch=0)
            ids[name] = run.run_id
    with start_run(workspace, "export", params={"model": "digits", "run": ids["fast"]}) as run:
        run.output(Artifact("model", here / ".timonel/models/digits/1", None, name="digits/1"))
        ids["export"] = run.run_id
    with pytest.raises(ValueError), start_run(workspace, "convert", name="data"):
        raise ValueError("no")
    return ids


def listed(outcome) -> list[str]:
    return [line.split()[0] for line in outcome.out.splitlines()[1:]]


def test_the_list_shows_when_and_which_model(timonel: Timonel, history) -> None:
    header, *lines = timonel("runs").out.splitlines()
    assert header.split() == ["RUN", "NAME", "STATUS", "STARTED", "TIME", "MODEL", "RESULT"]
    (line,) = [line for line in lines if history["fast"] in line]
    assert time.strftime("%Y-%m-%d") in line
    assert "digits/1" in line
    narrow = plain(run_list(list_runs(find_workspace()), {}, width=80), width=80)
    assert "MODEL" in narrow[0]
    assert "RESULT" in narrow[0]
    assert max(map(len, narrow)) <= 80


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "digits"], ["export", "fast"]),
        (["--model", "digits/1", "--kind", "train"], ["fast"]),
        (["--model", "digits/2"], []),
        (["--name", "*low"], ["slow"]),
        (["--status", "succeeded"], ["export", "fast", "slow"]),
        (["--since", "1h", "--kind", "train"], ["fast", "slow"]),
        (["--since", "2999-01-01"], []),
    ],
)
def test_the_list_is_filtered(words, expected, timonel: Timonel, history) -> None:
    found = json.loads(timonel("runs", "--json", *words).out)["runs"]
    assert {run["id"] for run in found} == {history[name] for name in expected}
    if not expected:
        assert "none of 4 runs matches" in timonel("runs", *words).out


def test_a_wrong_date_is_one_line(timonel: Timonel, history) -> None:
    outcome = timonel("runs", "--since", "yesterday")
    assert outcome.exit_code == 2
    assert "2026-01-31" in outcome.error_line


def test_runs_are_compared(timonel: Timonel, history) -> None:
    value = json.loads(timonel("runs", "compare", "slow", "fast", "--json").out)
    assert value == {
        "runs": [history["slow"], history["fast"]],
        "params": {"lr": [0.01, 0.1]},
        "metrics": {"loss": [1.5, 0.5]},
    }
    out = timonel("runs", "compare", "slow", "fast").out
    assert "lr" in out
    assert "epochs" not in out
    assert "needs two or more runs" in timonel("runs", "compare", "slow").error_line
