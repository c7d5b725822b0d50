from __future__ import annotations

from pathlib import Path

import pytest

from timonel.errors import CorruptError, NotFoundError
from timonel.training.settings import Settings
from timonel.training.spec import TrainSpec, read_spec


def test_a_script_sees_its_parameters_as_flags_before_its_arguments() -> None:
    spec = TrainSpec(
        run_id="r", workspace="/w", script="/s.py", params={"lr": "0.1"}, args=("--epochs", "3")
    )
    assert spec.argv("/job") == ["/s.py", "--lr=0.1", "--epochs", "3"]
    with_folder = spec.model_copy(update={"pass_job_dir": True})
    assert with_folder.argv("/job") == ["/s.py", "--lr=0.1", "--job-dir=/job", "--epochs", "3"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    spec = TrainSpec(
        run_id="r",
        workspace="/w",
        script="/s.py",
        settings=Settings.of({"strategy": "mirrored", "checkpoint_seconds": "5m"}),
        seed=3,
    )
    assert read_spec(spec.write(tmp_path)) == spec


def test_what_is_no_specification(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_spec(tmp_path / "train.json")
    (tmp_path / "train.json").write_text("{}")
    with pytest.raises(CorruptError):
        read_spec(tmp_path / "train.json")
