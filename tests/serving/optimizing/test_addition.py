"""What an export adds to its version: warm-up requests, and the choice of a runtime."""

from __future__ import annotations

import numpy as np
import pytest

from timonel.models.additions import Exported, begun
from timonel.models.inspection import signatures_of
from timonel.models.reference import ReferenceExample
from timonel.models.schema import CheckResult, Export, Meaning, ModelSummary, Preparation
from timonel.serving.config import RuntimeSettings
from timonel.serving.optimizing import work
from timonel.serving.optimizing.inputs import held_out
from timonel.serving.runtimes.evidence import read_evidence
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.samples import WARMUP_FILE, samples_of
from timonel.serving.warmup import warm_up
from timonel.storage import digest_bytes

PASSED = CheckResult(status="passed", message="")


def exported(folder, kind, examples):
    return Exported(
        folder,
        Export(
            created_at=0,
            digest="",
            size_bytes=0,
            signatures=signatures_of(folder),
            preparation=Preparation(input_kind=kind, source="data.load"),
            meaning=Meaning(task="regression", output="values", because="made"),
            model=ModelSummary(name="m", type="Model", parameters=1, trainable_parameters=1),
        ),
        examples,
        None,
    )


@pytest.fixture
def images(exports, png, tmp_path):
    """Three files: one is as it was, one has changed since, one is gone."""
    examples = []
    for name, content in {"kept": png(), "changed": png(), "gone": None}.items():
        path = tmp_path / f"{name}.png"
        if content is not None:
            path.write_bytes(content)
        known = digest_bytes(b"another" if name == "changed" else png())
        examples.append(
            ReferenceExample(key=path.name, source=str(path), digest=known, scores=(1.0,))
        )
    return exported(exports / "images", "image", examples)


@pytest.fixture
def rows(exports):
    sources = [
        {"age": 3, "name": "ab", "seats": 1},
        {"age": "4.5", "name": None, "seats": 1},
        {"age": None, "name": "x", "seats": 1},
    ]
    examples = [
        ReferenceExample(key=str(number), source=source, scores=(1.0,))
        for number, source in enumerate(sources)
    ]
    return exported(exports / "table", "table", examples)


def test_held_out_images_warm_the_version_up(images, tmp_path, png, monkeypatch):
    monkeypatch.setattr(work.subprocess, "Popen", None)  # nothing is measured for these
    version = tmp_path / "1"
    version.mkdir()
    with begun(images) as prepare:
        prepare(PASSED)(version)
    assert read_evidence(version).reason == "LiteRT has no DecodeImage"
    ((name, inputs),) = samples_of(version)
    assert (name, inputs["image_bytes"].tolist()) == ("serving_default", [png()])
    model = TensorFlowRuntime().load(images.saved_model, RuntimeSettings())
    warm_up(model, version)
    model.close()


@pytest.mark.parametrize("check", [None, CheckResult(status="failed", message="")])
def test_what_was_not_found_to_work_is_no_warm_up(images, tmp_path, check):
    with begun(images) as prepare:
        prepare(check)(tmp_path)
    assert not (tmp_path / WARMUP_FILE).exists()


def test_held_out_rows_are_asked_alone_and_together(rows):
    *alone, (_, together) = held_out(rows.export, rows.examples)
    assert [inputs["name"].tolist() for _, inputs in alone] == [[b"ab"], [b""], [b"x"]]
    np.testing.assert_array_equal(together["age"], np.array([3, 4.5, np.nan], np.float32))
    assert together["age"].dtype == np.float32


def test_a_model_of_tensors_has_no_held_out_inputs(images, rows):
    tensors = rows.export.model_copy(
        update={"preparation": Preparation(input_kind="tensor", source="unknown")}
    )
    assert held_out(tensors, rows.examples) == []
    assert held_out(images.export, []) == []


def test_small_models_are_not_measured(exports, tmp_path, monkeypatch):
    monkeypatch.setattr(work.subprocess, "Popen", None)
    x = np.zeros((1, 8, 8, 2), np.float32)
    worth = work.Worth(litert=1 << 20)
    with work.Measuring(exports / "dense", [("serving_default", {"x": x})], worth=worth) as made:
        evidence = made.put_into(tmp_path)
    assert evidence.runtime == "tensorflow"
    assert evidence.reason == "it is small; 'timonel models optimize' measures it all the same"


def test_an_addition_that_fails_costs_no_version(images, tmp_path, monkeypatch, caplog):
    from timonel.errors import ModelError
    from timonel.serving.optimizing.work import Measuring

    def fail(self):
        raise ModelError("it took too long")

    monkeypatch.setattr(Measuring, "wait", fail)
    with begun(images) as prepare:
        prepare(PASSED)(tmp_path)
    assert "is left out: it took too long" in caplog.text
