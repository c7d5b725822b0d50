"""A signature that requests cannot carry fails alone, and says why."""

from __future__ import annotations

import numpy as np
import pytest

from timonel.serving.batching.scheduling import is_open, scheduled
from timonel.serving.inference.conversion import signature_map
from timonel.serving.inference.flow import Call
from timonel.serving.manager.catalogue import Metadata, Servable
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.status import Code, StatusError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("sparse") / "1"
    spec = tf.TensorSpec([None, 3], tf.float32, name="x")
    root = tf.Module()

    @tf.function(input_signature=[spec])
    def dense(x):
        return {"y": x * 2}

    @tf.function(input_signature=[spec])
    def both(x):
        return {"y": x * 2, "z": tf.sparse.from_dense(x)}

    @tf.function(input_signature=[spec])
    def listed(x):
        rows = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=tf.constant([3]))
        return {"y": x * 2, "z": rows}

    signatures = {"serving_default": dense, "both": both, "listed": listed}
    tf.saved_model.save(root, str(folder), signatures=signatures)
    model = scheduled(TensorFlowRuntime().load(folder, RuntimeSettings(inter_op_threads=1)))
    yield model
    model.close()


X = {"x": np.array([[1, 0, 2]], np.float32)}


def predict(model, name, *outputs):
    call = Call(Servable("m", 1, model))
    return call.predict(call.signature(name), X, outputs)


def test_others_are_answered(model):
    assert predict(model, "")["y"].tolist() == [[2, 0, 4]]
    assert predict(model, "both", "y")["y"].tolist() == [[2, 0, 4]]


def test_it_says_why(model):
    with pytest.raises(StatusError, match="Output z of signature both is a sparse tensor") as told:
        predict(model, "both")
    assert told.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(
        StatusError, match="Output z of signature listed is a variant tensor"
    ) as told:
        predict(model, "listed")
    assert told.value.code is Code.INVALID_ARGUMENT
    assert predict(model, "listed", "y")["y"].tolist() == [[2, 0, 4]]


def test_metadata_shows_the_encoding(model):
    shown = signature_map(Metadata("m", 1, model.signatures, model.platform))
    found = shown.signature_def["both"].outputs["z"]
    assert found.WhichOneof("encoding") == "coo_sparse"
    sparse = found.coo_sparse
    names = (sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name)
    assert len(set(names)) == 3
    assert "" not in names


def test_it_is_never_batched(model):
    assert [name for name, each in model.signatures.items() if is_open(each)] == ["serving_default"]
