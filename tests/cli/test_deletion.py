"""``delete`` of each noun, and ``prune``, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from tests.retention.test_deletion import converted, published, trained
from timonel.models.repository import workspace_models
from timonel.storage import Workspace, find_workspace


@pytest.fixture
def workspace(here: Path) -> Workspace:
    return find_workspace(here / ".timonel")


def test_several_runs_are_deleted(timonel: Timonel, workspace: Workspace) -> None:
    for number in (1, 2, 3):
        trained(workspace, f"train-{number}")
    refused = timonel("runs", "delete", "train-1")
    assert refused.exit_code == 2
    assert "cannot ask whether to delete 2 items, " in refused.err
    shown = timonel("runs", "delete", "train-1", "train-2", "--dry-run")
    assert [line.split()[:2] for line in shown.out.splitlines()[1:5]] == [
        ["run", "train-1"],
        ["job", "train-1"],
        ["run", "train-2"],
        ["job", "train-2"],
    ]
    assert shown.out.splitlines()[5].endswith("in all")
    done = timonel("runs", "delete", "train-1", "train-2", "--yes")
    assert done.out.startswith("deleted 4 items, ")
    listed = json.loads(timonel("runs", "--json").out)
    assert [run["id"] for run in listed["runs"]] == ["train-3"]


def test_each_noun_has_the_same_deletion(
    timonel: Timonel, workspace: Workspace, here: Path
) -> None:
    converted(workspace, here / "digits")
    trained(workspace, "train-1")
    published(workspace, "cats", 1, "train-1")
    published(workspace, "cats", 2, "train-1")
    workspace_models(workspace).alias("cats", "champion", 2)
    kept = timonel("models", "delete", "cats", "--yes", "--json")
    answer = json.loads(kept.out)
    assert [each["name"] for each in answer["deleted"]] == ["cats/1"]
    assert answer["kept"] == [
        {"noun": "model", "name": "cats/2", "reason": "it has the alias champion"}
    ]
    refused = timonel("models", "delete", "cats/2", "--yes")
    assert refused.error_line == (
        "error: nothing is deleted: model cats/2 has the alias champion: --force deletes it "
        "anyway, but nothing that runs"
    )
    assert timonel("jobs", "delete", "train-1", "--yes", "--force").exit_code == 0
    data = timonel("data", "delete", "digits", "--yes", "--json")
    assert json.loads(data.out)["deleted"][0]["stays"] == str(here / "digits")
    assert (here / "digits/manifest.json").is_file()
    for noun in ("studies", "endpoints"):
        assert "nosuch" in timonel(noun, "delete", "nosuch", "--yes").error_line


def test_pruning_shows_sizes_and_reasons(timonel: Timonel, workspace: Workspace) -> None:
    trained(workspace, "train-1")
    trained(workspace, "train-2")
    published(workspace, "cats", 1, "train-1")
    assert timonel("prune", "--older-than", "30d", "--dry-run").out.splitlines()[-1] == "0 B in all"
    shown = timonel("prune", "--older-than", "0s", "--keep-last", "1", "--dry-run").out
    assert "run   train-2" not in shown
    assert "KEEP  NAME" in shown
    assert "model cats/1 was made from it" in shown
    done = timonel("prune", "--older-than", "0s", "--yes")
    assert done.exit_code == 0
    assert "No runs" in timonel("runs").out
    assert "--older-than" in timonel("prune").err
