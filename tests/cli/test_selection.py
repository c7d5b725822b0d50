"""Which model versions came of which runs."""

from __future__ import annotations

from pathlib import Path

from timonel.cli.commands.runs import models_of
from timonel.storage import find_workspace
from timonel.tracking import Artifact, list_runs, start_run


def test_an_export_that_names_no_run_belongs_to_itself_alone(here: Path) -> None:
    workspace = find_workspace(here / ".timonel")
    version = Artifact("model", here / "models" / "digits" / "1", None)
    for params in ({}, {"run": "train-1"}):
        with start_run(workspace, "export", params=params) as run:
            run.output(version)
    of = models_of(list_runs(workspace))
    ids = {record.id for record in list_runs(workspace)}
    assert set(of) == {*ids, "train-1"}
    assert all(versions == [version.label] for versions in of.values())
