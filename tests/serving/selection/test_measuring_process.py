"""Real SavedModels, converted and measured; the measuring process runs in this one."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from timonel.errors import InputError, ModelError, SpecError
from timonel.models.exports import ReferenceExample
from timonel.models.inspection import signatures_of
from timonel.models.runtime_choice import (
    EVIDENCE_FILE,
    FLATBUFFER_FILE,
    FROZEN_DIR,
    MeasuringRequest,
    RuntimeMeasurement,
    chosen_runtime,
    optimize,
    read_evidence,
)
from timonel.models.schema import WARMUP_FILE, Export, ModelSummary, OutputKind, Preparation
from timonel.models.versions import open_version
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.warmup import warm_up
from timonel.serving.runtimes.litert import LiteRtRuntime
from timonel.serving.runtimes.saved_model import as_warmup_file, samples_of
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.selection import measuring_process as process
from timonel.serving.selection.auto import AutoRuntime
from timonel.serving.selection.benchmark import decide
from timonel.serving.selection.measuring_process import choose, held_out, obstacles
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.status import StatusError
from timonel.storage import digest_bytes

AUTO = RuntimeSettings(name="auto")


class Ended:
    """A process that has answered at once."""

    stdin = None

    def __init__(self, command, **_):
        self.code = process.main(command[-2:])

    @property
    def returncode(self):
        return self.code

    def wait(self, timeout=None):
        return self.code

    def poll(self):
        return self.code


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """TensorFlow takes seconds to import, and is there already."""
    monkeypatch.setattr(subprocess, "Popen", Ended)


@pytest.fixture
def faster(monkeypatch):
    """Measuring is for quiet machines; here, LiteRT is what the decision's own tests say."""

    def decided(differences, impossible, measurements):
        quick = {"litert": 1.0, "frozen": 1.5, "tensorflow": 2.0}
        told = [
            each.model_copy(update={"milliseconds": quick[each.runtime]}) for each in measurements
        ]
        return decide(differences, impossible, told)

    monkeypatch.setattr(process, "decide", decided)


@pytest.fixture
def dense(exports, tmp_path):
    return shutil.copytree(exports / "dense", tmp_path / "dense" / "1")


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.random.default_rng(0).random((5, 8, 8, 2)))
    return path


@pytest.mark.slow
def test_litert_takes_over_and_clients_see_no_difference(dense, rows, faster):
    before = AutoRuntime().load(dense, AUTO)
    x = np.random.default_rng(1).random((3, 8, 8, 2), dtype=np.float32)
    right = before.run("serving_default", {"x": x})["scores"]

    evidence = optimize(open_version(dense), rows)
    assert evidence.runtime == "litert"
    assert evidence.difference < 1e-4
    assert {each.batch for each in evidence.measurements} == {1, 8, 32}
    assert read_evidence(dense) == evidence
    assert chosen_runtime(dense) == "litert"
    assert len(samples_of(dense)) == 5

    after = AutoRuntime().load(dense, AUTO)
    assert type(after) is not type(before)
    callable_ones = {n: s for n, s in before.signatures.items() if s.inputs}
    assert after.signatures == callable_ones
    np.testing.assert_allclose(
        after.run("serving_default", {"x": x})["scores"], right, rtol=1e-4, atol=1e-6
    )
    told = RuntimeSettings(name="auto", by_model={"dense": "tensorflow"}).of("dense")
    assert type(AutoRuntime().load(dense, told)) is type(before)


@pytest.mark.slow
def test_evidence_counts_for_what_was_measured_only(dense, rows, faster, exports):
    optimize(open_version(dense), rows)
    flatbuffer = (dense / FLATBUFFER_FILE).read_bytes()
    (dense / FLATBUFFER_FILE).write_bytes(flatbuffer[:-1] + b"x")
    assert chosen_runtime(dense) == "tensorflow"
    with pytest.raises(StatusError, match=r"There is no model\.tflite"):
        LiteRtRuntime().load(dense, AUTO)
    (dense / FLATBUFFER_FILE).unlink()
    assert chosen_runtime(dense) == "tensorflow"
    (dense / FLATBUFFER_FILE).write_bytes(flatbuffer)
    assert chosen_runtime(dense) == "litert"
    shutil.copy(exports / "versioned-1" / "saved_model.pb", dense / "saved_model.pb")
    assert chosen_runtime(dense) == "tensorflow"
    (dense / EVIDENCE_FILE).write_text("{")
    assert chosen_runtime(dense) == "tensorflow"


def test_other_answers_are_not_served(dense, rows, monkeypatch):
    monkeypatch.setattr(process, "compared", lambda *_: [1e-3])
    evidence = optimize(open_version(dense), rows)
    assert evidence.runtime == "tensorflow"
    assert "answers of LiteRT differ by 1.0e-03" in evidence.reason
    assert evidence.difference == 1e-3
    assert evidence.measurements == ()
    assert not (dense / FLATBUFFER_FILE).exists()


@pytest.mark.slow
def test_what_litert_lacks_may_do_without_variables(exports, tmp_path, png, faster):
    images = shutil.copytree(exports / "images", tmp_path / "images" / "1")
    assert obstacles(images) == {"litert": "LiteRT has no DecodeImage"}
    np.savez(tmp_path / "images.npz", image_bytes=np.array([png(), png(white=False)]))
    evidence = optimize(open_version(images), tmp_path / "images.npz")
    assert evidence.runtime == "frozen"
    assert evidence.reason.endswith("; LiteRT has no DecodeImage")
    assert json.loads((images / EVIDENCE_FILE).read_text())["kind"] == "runtime-choice"
    settings = AUTO.of("images")
    model = AutoRuntime().load(images, settings)
    inputs = {"image_bytes": np.array([png()], dtype=object)}
    assert model.run("serving_default", inputs)["label"].tolist() == [b"dog"]
    model.close()
    assert obstacles(exports / "doubler") == {"litert": "LiteRT has no AsString"}


@pytest.mark.parametrize("kind", ["counter", "nested", "random", "table"])
def test_a_state_that_requests_change_is_tensorflows(kind, tmp_path):
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self):
            self.count = tf.Variable(0.0)
            self.random = tf.random.Generator.from_seed(1)
            self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
            self.kernel = tf.Variable(tf.ones([2, 2]))

        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def __call__(self, x):
            if kind == "counter":
                self.count.assign_add(1.0)
            elif kind == "nested":
                tf.while_loop(
                    lambda i: i < 2, lambda i: (i + 1, self.count.assign_add(1.0))[:1], [0]
                )
            elif kind == "random":
                x += self.random.normal([2])
            else:
                self.table.insert(tf.constant([1], tf.int64), x[:1, 0])
            return {"y": x @ self.kernel + self.count}

    model = Model()
    tf.saved_model.save(model, str(tmp_path), {"serving_default": model.__call__})
    found = obstacles(tmp_path)
    assert found.keys() == {"litert", "frozen"}
    assert found["litert"].startswith("requests change its state (")
    np.savez(tmp_path / "rows.npz", x=np.ones((3, 2), np.float32))
    evidence = optimize(open_version(tmp_path), tmp_path / "rows.npz")
    assert (evidence.runtime, evidence.reason) == ("tensorflow", found["litert"])


@pytest.mark.slow
def test_variables_that_signatures_share_are_frozen_once(tmp_path, faster, monkeypatch):
    import tensorflow as tf

    module = tf.Module()
    module.kernel = tf.Variable(tf.random.normal((64, 64)))
    spec = tf.TensorSpec([None, 64], tf.float32, "x")
    module.one = tf.function(lambda x: {"y": x @ module.kernel}, input_signature=[spec])
    module.two = tf.function(
        lambda b, a: {"z": tf.nn.relu(b @ module.kernel), "y": a - b},
        input_signature=[spec, tf.TensorSpec([None, 64], tf.float32, "a")],
    )
    folder = tmp_path / "m" / "1"
    signatures = {"serving_default": module.one, "other": module.two}
    tf.saved_model.save(module, str(folder), signatures=signatures)
    rng = np.random.default_rng(0)
    samples = [
        ("serving_default", {"x": rng.random((2, 64), dtype=np.float32)}),
        ("other", {key: rng.random((2, 64), dtype=np.float32) for key in ("x", "a")}),
    ]
    (folder / WARMUP_FILE).parent.mkdir()
    (folder / WARMUP_FILE).write_bytes(as_warmup_file(samples))
    monkeypatch.setattr(process, "converted", refuse)
    assert optimize(open_version(folder)).runtime == "frozen"
    assert (folder / FROZEN_DIR / "saved_model.pb").stat().st_size < 1.5 * 4 * 64 * 64

    plain = AutoRuntime().load(folder, AUTO)
    frozen = AutoRuntime().load(folder, AUTO.of("m"))
    assert frozen.signatures.keys() == plain.signatures.keys()
    for name, inputs in samples:
        assert frozen.signatures[name] == plain.signatures[name]
        right, found = plain.run(name, inputs), frozen.run(name, inputs)
        for key in right:
            np.testing.assert_allclose(found[key], right[key], rtol=1e-5)
    plain.close()
    frozen.close()
    assert type(AutoRuntime().load(folder, RuntimeSettings(name="tensorflow").of("m"))) is type(
        plain
    )


def refuse(*_):
    raise process.ConversionError("LiteRT has no such thing")


def test_tables_are_no_variables(exports, tmp_path):
    """What holds more than variables stays as it is."""
    import tensorflow as tf

    module = tf.Module()
    initial = tf.lookup.KeyValueTensorInitializer(["a"], tf.constant([1], tf.int64))
    module.table = tf.lookup.StaticHashTable(initial, 0)
    module.run = tf.function(
        lambda x: {"y": module.table.lookup(x)},
        input_signature=[tf.TensorSpec([None], tf.string, "x")],
    )
    folder = tmp_path / "m" / "1"
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.run})
    np.savez(tmp_path / "words.npz", x=np.array(["a", "b"]))
    evidence = optimize(open_version(folder), tmp_path / "words.npz")
    assert evidence.runtime == "tensorflow"
    assert evidence.reason == (
        "LiteRT has no LookupTableFindV2; its variables cannot be frozen: signature "
        "serving_default holds more than variables"
    )


def test_what_cannot_be_converted_stays(exports, tmp_path):
    """The converter itself says so, as with an operation that the quick look does not know."""
    doubler = shutil.copytree(exports / "doubler", tmp_path / "doubler" / "1")
    with pytest.raises(process.ConversionError, match="LiteRT has no AsString"):
        process.converted(doubler, ("serve",))


def test_something_to_compare_on_is_needed(dense, rows, tmp_path):
    with pytest.raises(ModelError, match="has no requests to compare the runtimes on"):
        optimize(open_version(dense))
    np.savez(tmp_path / "other.npz", z=np.zeros(3))
    with pytest.raises(SpecError, match=r"match no signature: z") as caught:
        optimize(open_version(dense), tmp_path / "other.npz")
    assert caught.value.hint == "serving_default takes x"
    (tmp_path / "none.npz").write_text("nonsense")
    with pytest.raises(InputError):
        optimize(open_version(dense), tmp_path / "none.npz")
    assert not (dense / EVIDENCE_FILE).exists()


@pytest.mark.slow
def test_warm_up_requests_are_samples(dense, faster):
    (dense / WARMUP_FILE).parent.mkdir()
    x = np.random.default_rng(0).random((2, 8, 8, 2), dtype=np.float32)
    (dense / WARMUP_FILE).write_bytes(as_warmup_file([("serving_default", {"x": x})]))
    ((name, inputs),) = samples_of(dense)
    assert name == "serving_default"
    np.testing.assert_array_equal(inputs["x"], x)
    assert optimize(open_version(dense)).runtime == "litert"
    (dense / WARMUP_FILE).write_bytes(b"damaged")
    assert samples_of(dense) == []


def test_other_signatures_with_the_same_inputs_are_not_warmed_up(rows, tmp_path):
    class Counting(tf.Module):
        def __init__(self):
            super().__init__()
            self.count = tf.Variable(0.0)

        @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 2], tf.float32, name="x")])
        def look(self, x):
            return {"y": tf.reduce_sum(x, [1, 2, 3]) + self.count}

        @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 2], tf.float32, name="x")])
        def train(self, x):
            return {"y": tf.reduce_sum(x, [1, 2, 3]) + self.count.assign_add(1.0)}

    made = Counting()
    tf.saved_model.save(
        made, tmp_path / "1", signatures={"serving_default": made.look, "train": made.train}
    )
    choose(MeasuringRequest(saved_model=tmp_path / "1", output=tmp_path, samples=rows))
    assert [name for name, _ in samples_of(tmp_path)] == ["serving_default"] * 5


def test_a_process_that_dies_costs_no_version(dense, rows, monkeypatch):
    class Killed(Ended):
        def __init__(self, command, stdout, **_):
            stdout.write(b"Fatal: out of luck\n")
            self.code = -11

    monkeypatch.setattr(subprocess, "Popen", Killed)
    evidence = optimize(open_version(dense), rows)
    assert evidence.runtime == "tensorflow"
    assert evidence.reason == "the measuring process ended with code -11: Fatal: out of luck"


def exported(folder, kind, examples):
    return MeasuringRequest(
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
def table(exports):
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
    return RuntimeMeasurement(request.saved_model, export=request.export, examples=request.examples)


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
    model = scheduled(TensorFlowRuntime().load(images.saved_model, RuntimeSettings()))
    warm_up(model, version)
    model.close()


def test_what_was_not_found_to_work_is_no_warm_up(images, tmp_path):
    with chosen_for(images) as choice:
        choice.store(tmp_path, warm_up=False)
    assert not (tmp_path / WARMUP_FILE).exists()


def test_held_out_rows_are_asked_alone_and_together(table):
    *alone, (_, together) = held_out(table.export, table.examples)
    assert [inputs["name"].tolist() for _, inputs in alone] == [[b"ab"], [b""], [b"x"]]
    np.testing.assert_array_equal(together["age"], np.array([3, 4.5, np.nan], np.float32))
    assert together["age"].dtype == np.float32


def test_a_model_of_tensors_has_no_held_out_inputs(images, table):
    tensors = table.export.model_copy(
        update={"preparation": Preparation(input_kind="tensor", source="unknown")}
    )
    assert held_out(tensors, table.examples) == []
    assert held_out(images.export, []) == []


@pytest.mark.slow
def test_small_models_are_measured_only_if_that_is_required(exports, tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros((1, 8, 8, 2), np.float32))
    request = MeasuringRequest(
        saved_model=exports / "dense", output=tmp_path, samples=tmp_path / "rows.npz"
    )
    evidence = choose(request)
    assert evidence.runtime == "tensorflow"
    assert evidence.reason == "it is small; to measure it anyway, run 'timonel models optimize'"
    assert choose(request.model_copy(update={"required": True})).measurements


@pytest.mark.slow
def test_a_model_that_safe_loading_refuses_is_not_measured(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def writes(x):
        with tf.control_dependencies([tf.io.write_file(str(tmp_path / "written"), "")]):
            return {"y": x * 2.0}

    version, rows = tmp_path / "1", tmp_path / "rows.npz"
    tf.saved_model.save(tf.Module(), str(version), writes)
    np.savez(rows, x=np.ones(2, np.float32))
    before = sorted(version.rglob("*"))
    with pytest.raises(ModelError, match="WriteFile writes files"):
        optimize(open_version(version), rows)
    assert sorted(version.rglob("*")) == before
    assert not (tmp_path / "written").exists()
