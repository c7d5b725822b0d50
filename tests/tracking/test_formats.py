"""Records that are kept as files are read: a format that changes by mistake fails here."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from timonel.storage import Workspace, find_workspace, read_document
from timonel.tracking import Artifact, read_run

FORMATS = Path(__file__).parent.parent / "fixtures" / "formats"
RUN_ID = "train-20261120-181530-7f3a"


@pytest.fixture
def old(tmp_path: Path) -> Workspace:
    """A workspace of the first format."""
    shutil.copytree(FORMATS / "1" / "workspace", tmp_path / "w")
    return find_workspace(tmp_path / "w", create=False)


def test_a_run_of_format_1(old: Workspace) -> None:
    record = read_run(old, RUN_ID)
    assert (record.kind, record.name, record.job_id) == ("train", "base", RUN_ID)
    assert (record.status, record.cause) == ("failed", "user-error")
    assert record.message == "the loss is not a number"
    assert record.duration_s == 9.5
    assert record.params == {"lr": 0.01, "layers": [32, 16], "api_key": "***", "batch_size": 32}
    assert [(point.step, point.epoch) for point in record.series["loss"]] == [(10, 0), (20, 1)]
    assert math.isnan(record.metrics["loss"])
    assert record.metrics["accuracy"] == 0.5
    assert [artifact.type for artifact in record.inputs] == ["source", "dataset"]
    assert record.inputs[1] == Artifact(
        "dataset", "/home/me/digits/data/digits", "sha256:" + "a" * 64, "digits", {"split": "train"}
    )
    assert [artifact.type for artifact in record.outputs] == ["savedmodel"]
    assert record.restarts == 1
    assert record.skipped_lines == 1
    assert record.header.git is not None
    assert record.header.git["dirty"] is True
    assert record.header.environment["packages"]["tensorflow"] == "2.21.0"


def test_a_mirrors_position_of_format_1(old: Workspace) -> None:
    position = read_document(old.runs / RUN_ID / "mirrors" / "mlflow.json", "mirror")
    assert (position["offset"], position["is_complete"]) == (131, False)
