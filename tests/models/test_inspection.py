"""Reading signatures without TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from timonel.errors import ModelError
from timonel.models.inspection import is_saved_model, signatures_of


def test_signatures_have_names_types_and_shapes(export_folder: Path) -> None:
    signatures = signatures_of(export_folder / "saved_model")
    assert {name: each.model_dump(mode="json") for name, each in signatures.items()} == {
        "serving_default": {
            "inputs": {"image_bytes": {"dtype": "string", "shape": [-1]}},
            "outputs": {
                "class_id": {"dtype": "int64", "shape": [-1]},
                "label": {"dtype": "string", "shape": [-1]},
                "scores": {"dtype": "float32", "shape": [-1, 2]},
            },
            "method": "tensorflow/serving/predict",
        },
        "tensor": {
            "inputs": {"input": {"dtype": "float32", "shape": [-1, 4, 4, 1]}},
            "outputs": {"output_0": {"dtype": "float32", "shape": [-1, 2]}},
            "method": "tensorflow/serving/predict",
        },
    }


def test_no_saved_model(tmp_path: Path) -> None:
    assert not is_saved_model(tmp_path)
    with pytest.raises(ModelError, match=r"cannot read saved_model\.pb"):
        signatures_of(tmp_path)


@pytest.mark.parametrize("size", [100, 5000, 20_000])
def test_a_saved_model_that_was_cut_off(export_folder: Path, size: int) -> None:
    path = export_folder / "saved_model/saved_model.pb"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError, match="is broken") as raised:
        signatures_of(path.parent)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"hello, this is text", bytes(100)])
def test_other_content_is_no_saved_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(ModelError, match="is broken"):
        signatures_of(tmp_path)


@pytest.mark.process
def test_models_are_listed_without_tensorflow(export_folder: Path) -> None:
    script = """
import sys
from pathlib import Path
from timonel.models import ModelRepository, signatures_of
signatures_of(Path(sys.argv[1]))
ModelRepository(Path(sys.argv[1])).names()
print(sorted({"tensorflow", "keras", "numpy", "matplotlib"} & sys.modules.keys()))
"""
    folder = str(export_folder / "saved_model")
    found = subprocess.run(
        [sys.executable, "-c", script, folder], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"
