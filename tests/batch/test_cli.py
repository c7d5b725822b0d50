"""``timonel predict --batch``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel, here, timonel
from timonel.storage import Workspace
from timonel.tracking import lineage, list_runs

__all__ = ["here", "timonel"]


@pytest.fixture
def rows(here: Path) -> Path:
    path = here / "rows.jsonl"
    path.write_text("".join(f'{{"id": {i}, "x": [{i}.0, 0.5]}}\n' for i in range(10)))
    return path


@pytest.mark.process
def test_a_batch_prediction(models: Workspace, rows: Path, timonel: Timonel) -> None:
    loaded = "tensorflow" in sys.modules
    done = timonel("-w", models.uri, "predict", "doubler", "--batch", rows, "--out", "o.csv")
    assert done.exit_code == 0, done.err
    assert done.out.split() == f"{rows.parent}/o.csv 10 predictions of doubler/1".split()
    assert ("tensorflow" in sys.modules) == loaded
    again = ["-w", models.uri, "predict", "doubler", "--batch", rows, "--out", "o.csv"]
    assert "o.csv already exists" in timonel(*again).error_line
    options = ["--overwrite", "--key", "id", "--keep", "x", "--json", "--batch-size", 4]
    done = timonel(*again, *options)
    assert json.loads(done.out) == {
        "out": f"{rows.parent}/o.csv",
        "model": "doubler",
        "version": 1,
        "rows": 10,
        "failed": 0,
        "errors": None,
        "ignored": 0,
    }
    assert Path("o.csv").read_text().splitlines()[:2] == [
        '"key","x","doubled","text"',
        '"0","[0.0, 0.5]","[0.0,1.0]","0.000000"',
    ]


@pytest.mark.process
def test_the_run_is_recorded(models: Workspace, rows: Path, timonel: Timonel) -> None:
    timonel("-w", models.uri, "predict", "doubler", "--batch", rows, "--out", "o.csv")
    (run,) = list_runs(models, kind="predict")
    assert [artifact.name for artifact in run.inputs] == ["doubler/1", "rows.jsonl"]
    assert [artifact.name for artifact in run.outputs] == ["o.csv"]
    assert run.metrics["rows"] == 10
    assert lineage(models, run.id)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "a"], "--batch needs --out"),
        (["x", "--batch", "a", "--out", "b.csv"], "expected either inputs or --batch, got 'x'"),
        (["x", "--out", "b.csv"], "--out needs --batch"),
        (["x", "--keep", "a"], "--keep needs --batch"),
        (["--batch", "a", "--out", "b.csv", "--top", "3"], "--top cannot be used with --batch"),
        ([], "nothing to predict: name files or rows, or use --batch"),
        (["--batch", "a", "--out", "b.xml"], "the name b.xml shows no format"),
        (["--batch", "a", "--out", "no/b.csv"], "no folder at"),
        (["--batch", "a", "--out", "b.csv"], "no folder or file at a"),
        (["photos"], "photos is a folder: predict its files with --batch photos --out"),
        (
            ["--batch", "a", "--out", "b.csv", "--beam", "runner=X"],
            "the runner local has no options, got 'runner=X': --beam needs --runner beam",
        ),
    ],
)
def test_wrong_options_are_one_line(
    models: Workspace, here: Path, timonel: Timonel, words: list[str], message: str
) -> None:
    (here / "photos").mkdir()
    done = timonel("-w", models.uri, "predict", "doubler", *words)
    assert done.exit_code == 2
    assert message in done.error_line
