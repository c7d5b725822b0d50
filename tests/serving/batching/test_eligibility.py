"""Which signatures are batched, and on what evidence."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from tests.contracts.runtimes import FakeRuntime
from tests.serving.batching.runtime import ScheduledRuntime
from timonel.models import row_evidence
from timonel.models.runtime_choice import identity_of
from timonel.models.schema import VERSION_FILE
from timonel.serving.batching.scheduling import eligible
from timonel.serving.runtimes.base import DeclaringModel, LoadedModel
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import Signature, TensorSpec
from timonel.storage import write_document

OPEN = {"x": TensorSpec("x:0", "DT_FLOAT", (-1, 2))}


class Unrunnable(LoadedModel):
    """A model that must not be run."""

    def __init__(self, **signatures):
        self.signatures = {name: Signature(name, *spec) for name, spec in signatures.items()} or {
            "s": Signature("s", OPEN, OPEN)
        }

    def run(self, signature, inputs, outputs=None):
        raise AssertionError("loading has run the model")

    def close(self):
        pass


class Declared(Unrunnable, DeclaringModel):
    slots = 1

    def __init__(self, batchable):
        super().__init__()
        self.batchable = batchable


@pytest.fixture
def version(tmp_path):
    (tmp_path / "saved_model.pb").write_text("3")
    return tmp_path


def prove(version, independent=True, reason="its layers do", identity=None):
    """Store evidence in a version's folder."""
    rows = {
        "independent": independent,
        "reason": reason,
        "saved_model": identity or identity_of(version),
    }
    summary = {"name": "n", "type": "Functional", "parameters": 0, "trainable_parameters": 0}
    body = {
        "name": "m",
        "version": 1,
        "created_at": 0.0,
        "digest": "d",
        "rows": rows,
        "export": {
            "created_at": 0.0,
            "digest": "d",
            "size_bytes": 1,
            "signatures": {},
            "preparation": {"input_kind": "image", "source": "data.load"},
            "meaning": {"task": "classification", "output": "scores", "because": "b"},
            "model": summary,
        },
    }
    (version / VERSION_FILE).parent.mkdir(exist_ok=True)
    write_document(version / VERSION_FILE, "model-version", body)


def of(version, model=None, **settings):
    return eligible(model or Unrunnable(), AdaptiveBatching(**settings), version)


def test_nothing_is_batched_without_evidence(version):
    found = of(version)
    assert found.signatures == frozenset()
    assert found.reason == "it has no evidence that rows of a batch are independent"
    assert of(None).signatures == frozenset()


def test_evidence_of_the_export_is_believed(version):
    prove(version)
    assert of(version) == ({"s"}, "its layers do")
    prove(version, independent=False, reason="Lambda 'pool' may mix the rows of a batch")
    assert of(version) == (frozenset(), "Lambda 'pool' may mix the rows of a batch")


def test_evidence_is_for_the_files_it_was_found_on(version):
    prove(version)
    (version / "saved_model.pb").write_text("4")
    assert of(version) == (frozenset(), "its files were changed after the export")


def test_broken_evidence_is_none(version):
    prove(version)
    (version / VERSION_FILE).write_text("{")
    assert of(version).signatures == frozenset()


def test_a_user_may_assume_it(version):
    assert of(version, assumed=("*",)).signatures == {"s"}
    every, one, none = (AdaptiveBatching(assumed=names) for names in (("*",), ("m",), ("other",)))
    assert [each.of("m").assumed for each in (every, one, none)] == [("*",), ("*",), ()]


def test_code_declares_it_for_itself(version):
    assert of(version, Declared(True)).signatures == {"s"}
    assert of(version, Declared(False), assumed=("*",)).signatures == frozenset()


def test_a_declared_size_is_believed(version):
    fixed = {"x": TensorSpec("x:0", "DT_FLOAT", (1, 2))}
    unknown = {"x": TensorSpec("x:0", "DT_FLOAT", None)}
    scalar = {"x": TensorSpec("x:0", "DT_FLOAT", ())}
    model = Unrunnable(
        a=(OPEN, OPEN), b=(fixed, OPEN), c=(OPEN, unknown), d=(OPEN, scalar), e=({}, OPEN)
    )
    assert of(version, model, assumed=("*",)).signatures == {"a"}


def test_a_load_says_whether_it_batches_and_why(version, caplog):
    caplog.set_level(logging.INFO, "timonel.serving.batching")
    prove(version)
    for settings in (AdaptiveBatching(), AdaptiveBatching(assumed=("*",))):
        runtime = ScheduledRuntime(FakeRuntime())
        model = runtime.load(version, RuntimeSettings(batching=settings))
        model.run("serving_default", {"x": np.ones(2, np.float32)})
        model.close()
        prove(version, identity="sha256:other")
    runtime.load(version, RuntimeSettings()).close()
    assert [record.getMessage() for record in caplog.records] == [
        f"{version} batches requests to serving_default: its layers do",
        f"{version} batches requests to serving_default: --batching was given for it",
        f"{version} computes each request alone: its files were changed after the export",
    ]


@pytest.mark.parametrize(
    ("layers", "alone", "mixed", "reason"),
    [
        ((), 16, 0, None),
        (None, 16, 0, "its layers were not examined"),
        (("Lambda 'a'",), 16, 0, "Lambda 'a' may mix the rows of a batch"),
        (("Lambda 'a'", "Net 'b'"), 16, 0, "Lambda 'a' and 1 more may mix the rows of a batch"),
        ((), 0, 0, "no held-out inputs were computed both alone and in batches"),
        ((), 16, 2, "2 of 16 held-out inputs had other results in a batch than alone"),
    ],
)
def test_evidence_needs_both_the_layers_and_the_comparison(layers, alone, mixed, reason, version):
    prove(version)
    document = row_evidence.VersionDocument.read(version / VERSION_FILE, "model-version")
    summary = document.export.model.model_copy(update={"may_mix_rows": layers})
    export = document.export.model_copy(update={"model": summary})
    check = row_evidence.CheckResult(
        status="passed", message="", rows_alone=alone, rows_mixed=mixed
    )
    found = row_evidence.row_evidence(export, check, "sha256:x")
    assert found.independent is (reason is None)
    assert found.reason == reason or reason is None
    assert not row_evidence.row_evidence(export, None, "sha256:x").independent
