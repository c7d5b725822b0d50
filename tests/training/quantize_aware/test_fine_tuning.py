"""``timonel train --quantize-aware``: jobs that fine-tune a model for integers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from timonel.cli.main import run as call
from timonel.data import convert
from timonel.edge import convert_version
from timonel.errors import ModelError, SpecError
from timonel.models import export
from timonel.storage import Workspace, find_workspace
from timonel.tracking import list_runs, read_run
from timonel.training import train
from timonel.training.quantize_aware.plan import plan_fine_tuning

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow_model_optimization") is None,
        reason="tensorflow-model-optimization is not installed",
    ),
]

# The channels of a layer have very different ranges, which one range of int8 cannot express: the
# model computes the same, but loses accuracy when it is quantized.
SCRIPT = """
import keras
import timonel
train, val = (timonel.data.load(split=each, batch_size=32) for each in ("train", "validation"))
model = keras.Sequential([
    keras.Input((8, 8, 1)),
    keras.layers.Conv2D(8, 3, activation="relu"),
    keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
    keras.layers.Flatten(),
    keras.layers.Dense(10, activation="softmax"),
])
model.compile(
    keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(train, validation_data=val, epochs=8)
(kernel, bias), (after, last) = model.layers[0].get_weights(), model.layers[1].get_weights()
kernel[..., ::4] *= 400
bias[::4] *= 400
after[:, :, ::4] /= 400
model.layers[0].set_weights([kernel, bias])
model.layers[1].set_weights([after, last])
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a trained model of digits."""
    root = tmp_path_factory.mktemp("digits")
    found = load_digits()
    for number, (pixels, label) in enumerate(zip(found.images, found.target, strict=True)):
        folder = root / "raw" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype(np.uint8)).save(folder / f"{number}.png")
    workspace = find_workspace(root / "workspace")
    convert(root / "raw", root / "data", workspace=workspace)
    (root / "train.py").write_text(SCRIPT)
    train(root / "train.py", data=root / "data", workspace=workspace, seed=1, progress=False)
    return workspace


def test_the_fine_tuned_model_is_better_in_int8(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = list_runs(workspace, kind="train")[0]
    plain = export(original.id, name="digits", workspace=workspace, optimize=False)
    command = ["-w", str(workspace.root), "train", "--quantize-aware", original.id, "--json"]
    assert call([*command, "--set", "epochs=4"]) == 0
    run = read_run(workspace, json.loads(capsys.readouterr().out)["id"])
    assert run.params["epochs"] == "4"
    assert {each.digest for each in original.outputs} & {each.digest for each in run.inputs}
    aware = export(run.id, name="digits", workspace=workspace, optimize=False)
    assert aware.check is not None
    assert aware.check.status == "passed"
    assert aware.document is not None
    assert aware.document.export.model.precision == "int8"
    found: Any = {}
    for version in (plain, aware):
        made = convert_version(version, quantize="int8", output=str(tmp_path / str(version.number)))
        found[version.number] = made.report.comparison
    assert found[1].original_accuracy > 0.8
    assert found[1].accuracy < found[1].original_accuracy - 0.02
    assert found[2].accuracy > found[1].accuracy
    # The integers are those that the training simulated.
    assert found[2].agreement > 0.98
    with pytest.raises(SpecError, match="with simulated integers already"):
        plan_fine_tuning(workspace, run.id, {}, None)
    with pytest.raises(SpecError, match="so it has no float16"):
        convert_version(aware, quantize="float16", output=str(tmp_path / "float16"))


def test_workers_fine_tune_together(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    run = list_runs(workspace, kind="train")[-1].id
    command = ["-w", str(workspace.root), "train", "--quantize-aware", run, "--json"]
    assert call([*command, "--workers", "2", "--set", "epochs=1"]) == 0
    tuned = read_run(workspace, json.loads(capsys.readouterr().out)["id"])
    assert tuned.metrics["val_accuracy"] > 0.7


def test_other_data_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    run = list_runs(workspace, kind="train")[-1].id
    for number in range(20):
        folder = tmp_path / "raw" / ("even" if number % 2 == 0 else "odd")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / f"{number}.png")
    convert(tmp_path / "raw", tmp_path / "data", workspace=workspace)
    with pytest.raises(SpecError, match="has the labels even, odd, the model 0, 1, 2"):
        plan_fine_tuning(workspace, run, {}, str(tmp_path / "data"))


def test_bad_requests_are_refused(workspace: Workspace, tmp_path: Path) -> None:
    run = list_runs(workspace, kind="train")[-1].id
    with pytest.raises(SpecError, match="no parameter 'units'"):
        plan_fine_tuning(workspace, run, {"units": "3"}, None)
    command = ["-w", str(workspace.root), "train", "--quantize-aware", run]
    assert call([*command, "train.py"]) == 2
    assert call(["-w", str(workspace.root), "train"]) == 2
    script = tmp_path / "empty.py"
    script.write_text("print('no model')")
    bare = train(script, workspace=workspace, progress=False, strategy="none")
    with pytest.raises(ModelError, match="has no model"):
        plan_fine_tuning(workspace, bare.id, {}, None)
