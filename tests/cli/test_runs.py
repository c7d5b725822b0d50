"""The list of runs, one run in full, and both as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from timonel.storage import find_workspace
from timonel.tracking import Artifact, start_run


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
    assert "expected a workspace" in outcome.error_line
    assert list(here.iterdir()) == []


def test_a_workspace_of_a_newer_format_is_refused(here: Path, timonel: Timonel) -> None:
    (here / ".timonel").mkdir()
    (here / ".timonel" / "FORMAT").write_text('{"kind": "workspace", "format": 99}')
    outcome = timonel("runs")
    assert outcome.exit_code == 4
    assert "upgrade timonel" in outcome.error_line
