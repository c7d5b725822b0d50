"""The scripts that ``timonel init`` writes train on other data than the samples they come with."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from timonel.data import convert, load_registry
from timonel.storage import Workspace

keras = pytest.importorskip("keras")

Train = Callable[..., Any]

# Keras 3 says so of every fit on a tf.data.Dataset.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Iterator[Train]:
    """Run a template's script in this process, for one epoch, and return its model."""
    load_registry.reset()

    def run(kind: str, data: Path, *argv: str) -> Any:
        script = resources.files("timonel") / "templates" / kind / "train.py"
        monkeypatch.setenv("TIMONEL_DATA", str(data))
        monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "1", *argv])
        return runpy.run_path(str(script))["model"]

    yield run
    load_registry.reset()
    keras.backend.clear_session()


@pytest.fixture
def photographs(tmp_path: Path, workspace: Workspace) -> Path:
    """Colour images of several sizes, larger than what a network takes."""
    random = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "raw" / label).mkdir(parents=True)
        for index in range(10):
            pixels = random.integers(0, 256, (150 + index, 180, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "raw" / label / f"{index}.jpg")
    convert(tmp_path / "raw", tmp_path / "photographs", workspace=workspace)
    return tmp_path / "photographs"


def test_size_and_colour_follow_from_the_photographs(
    train: Train, photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = train("image", photographs)
    assert model.input_shape == (None, 128, 128, 3)
    assert model.output_shape == (None, 2)
    assert "--set pretrained=imagenet" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' h5
def test_photographs_may_start_from_trained_weights(
    train: Train, photographs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mobilenet.weights.h5"
    shape = (128, 128, 3)
    keras.applications.MobileNetV2(input_shape=shape, include_top=False, weights=None).save_weights(
        file
    )
    model = train("image", photographs, "--pretrained", str(file))
    assert [tuple(weight.shape) for weight in model.trainable_weights] == [(1280, 2), (2,)]


@pytest.mark.parametrize("given", ["imagenet", "nothing.weights.h5"])
def test_weights_that_cannot_be_loaded_are_one_line(
    train: Train, photographs: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Exception("URL fetch failure on https://weights.invalid")  # noqa: TRY002 - as Keras

    monkeypatch.setattr("keras.src.utils.file_utils.get_file", fail)
    with pytest.raises(SystemExit) as caught:
        train("image", photographs, "--pretrained", given)
    message = str(caught.value.code)
    assert message.startswith(f"cannot load the weights '{given}' (")
    assert message.endswith("or give a file of weights with --set pretrained=FILE")


def test_a_number_to_predict(train: Train, tmp_path: Path, workspace: Workspace) -> None:
    rows = [f"{i},{1000 + 3 * i}" for i in range(100)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,price", *rows]))
    convert(tmp_path / "rows.csv", tmp_path / "set", label="price", workspace=workspace)
    model = train("table", tmp_path / "set")
    assert model.output_shape == (None, 1)
    # Before any learning, predictions are about the mean of the labels, not about zero.
    assert 800 < float(model.predict(np.zeros((1, 1)), verbose=0)[0, 0]) < 1500
