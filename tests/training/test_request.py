from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from timonel.data import Dataset
from timonel.errors import CorruptError, NotFoundError, SpecError
from timonel.training.request import TrainingRequest, check_request
from timonel.training.settings import OPTION_NAMES, Settings


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import keras\n")
    return path


def check(entry: object, **changes: Any) -> TrainingRequest:
    options: dict[str, Any] = {
        "data": None,
        "params": None,
        "args": (),
        "settings": Settings.of(
            {name: changes.pop(name) for name in OPTION_NAMES if name in changes}
        ),
    }
    return check_request(entry, **{**options, **changes})  # type: ignore[arg-type] # bad on purpose


def test_a_good_request(script: Path, dataset: Dataset) -> None:
    request = check(script, data=dataset.uri, params={"lr": 0.1}, args=["--epochs", "3"], workers=2)
    assert request.program.file == str(script)
    assert request.datasets[""].digest == dataset.digest
    assert request.params == {"lr": "0.1"}
    assert request.args == ("--epochs", "3")
    assert request.settings.distribution.strategy == "auto"
    assert request.program.keras == "keras"


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("absent.py", NotFoundError, "no script at"),
        (".", SpecError, "is a folder"),
        ("notes.ipynb", NotFoundError, "no script at"),
        ("no/such/module", NotFoundError, "no script at"),
    ],
)
def test_a_script_that_is_none(
    tmp_path: Path, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        check(tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"workers": 10**9}, "--workers must be at most 10000, got 1000000000"),
        ({"workers": 10_001}, "--workers must be at most 10000, got 10001"),
        ({"workers": 2, "ps": 10**12}, "--ps must be at most 10000, got 1000000000000"),
        ({"devices_per_worker": 0}, "devices-per-worker must be at least 1"),
        ({"strategy": "horovod"}, "strategy must be 'auto'"),
        ({"strategy": "mirrored", "workers": 2}, "'mirrored' runs in one worker"),
        ({"params": {"a b": 1}}, "valid as a flag"),
        ({"params": {"": 1}}, "valid as a flag"),
        ({"data": {"a-b": "x"}}, "dataset's name"),
    ],
)
def test_values_that_cannot_be_used(script: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        check(script, **changes)


def test_data_that_is_no_dataset(script: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no dataset at"):
        check(script, data=tmp_path)


def test_data_that_is_cut_off(script: Path, dataset: Dataset, tmp_path: Path) -> None:
    copy = Dataset.open(shutil.copytree(dataset.uri, tmp_path / "copy"))
    with copy.shards("test")[0].open("ab") as shard:
        shard.truncate(10)
    with pytest.raises(CorruptError, match="has 10 bytes"):
        check(script, data=copy.uri)


def test_more_workers_than_records(script: Path, dataset: Dataset) -> None:
    records = dataset.count("train")
    assert check(script, data=dataset.uri, workers=records)
    with pytest.raises(SpecError, match=f"fewer than the {records + 1} replicas"):
        check(script, data=dataset.uri, workers=records + 1)


@pytest.mark.parametrize(
    ("text", "flavour"),
    [
        ("import keras", "keras"),
        ("import tf_keras as keras", "tf_keras"),
        ("from tf_keras import layers", "tf_keras"),
        ("import os; os.environ['TF_USE_LEGACY_KERAS'] = '1'", "tf_keras"),
        ("# tf_keras", "keras"),
        ("this is no Python", "keras"),
    ],
)
def test_which_keras_a_script_uses(script: Path, text: str, flavour: str) -> None:
    script.write_text(text)
    assert check(script).program.keras == flavour


def test_which_keras_the_environment_says(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert check(script).program.keras == "tf_keras"
