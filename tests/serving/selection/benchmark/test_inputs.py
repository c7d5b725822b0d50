"""Held-out examples as requests, and an export without a measurement."""

from __future__ import annotations

import numpy as np
import pytest

from timonel.models.evidence import read_evidence
from timonel.models.inspection import signatures_of
from timonel.models.optimization import Request, RuntimeChoice
from timonel.models.reference import ReferenceExample
from timonel.models.schema import WARMUP_FILE, Export, ModelSummary, OutputKind, Preparation
from timonel.serving.inference.warmup import warm_up
from timonel.serving.runtimes.samples import samples_of
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.selection.benchmark.inputs import held_out
from timonel.serving.selection.benchmark.process import choose
from timonel.serving.settings import RuntimeSettings
from timonel.storage import digest_bytes


def exported(folder, kind, examples):
    return Request(
        saved_model=folder,
        output=folder,
        export=Export(
            created_at=0,
            digest="",
            size_bytes=0,
            signatures=signatures_of(folder),
            preparation=Preparation(input_kind=kind, source="data.load"),
            meaning=OutputKind(task="regression", output="values", because="made"),
            model=ModelSummary(name="m", type="Model", parameters=1, trainable_parameters=1),
        ),
        examples=examples,
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


def chosen_for(request):
    return RuntimeChoice(request.saved_model, export=request.export, examples=request.examples)


def test_held_out_images_warm_the_version_up(images, tmp_path, png):
    version = tmp_path / "1"
    version.mkdir()
    with chosen_for(images) as choice:
        evidence = choice.store(version, warm_up=True)
    assert evidence.reason == "LiteRT has no DecodeImage"
    assert evidence.measurements == ()
    assert read_evidence(version) == evidence
    ((name, inputs),) = samples_of(version)
    assert (name, inputs["image_bytes"].tolist()) == ("serving_default", [png()])
    model = TensorFlowRuntime().load(images.saved_model, RuntimeSettings())
    warm_up(model, version)
    model.close()


def test_what_was_not_found_to_work_is_no_warm_up(images, tmp_path):
    with chosen_for(images) as choice:
        choice.store(tmp_path, warm_up=False)
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


def test_small_models_are_measured_only_if_that_is_required(exports, tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros((1, 8, 8, 2), np.float32))
    request = Request(saved_model=exports / "dense", output=tmp_path, samples=tmp_path / "rows.npz")
    evidence = choose(request)
    assert evidence.runtime == "tensorflow"
    assert evidence.reason == "it is small; 'timonel models optimize' measures it all the same"
    assert choose(request.model_copy(update={"required": True})).measurements
