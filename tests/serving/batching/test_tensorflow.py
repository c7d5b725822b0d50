"""Batching around the real runtime."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.contracts.runtimes import RuntimeContract
from tests.serving.batching.runtime import ScheduledRuntime
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.settings.batching import AdaptiveBatching, BatchingParameters
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.status import StatusError

SETTINGS = RuntimeSettings(intra_op_threads=1, inter_op_threads=1)


class TestContract(RuntimeContract):
    @pytest.fixture
    def runtime(self):
        return ScheduledRuntime(TensorFlowRuntime())

    @pytest.fixture
    def version(self, exports):
        return exports / "doubler"


def load(exports, name, settings, observe=None):
    model = TensorFlowRuntime().load(exports / name, SETTINGS)
    return scheduled(model, settings, observe)


@pytest.fixture(scope="module")
def stateful(tmp_path_factory):
    """A SavedModel whose signatures change its state: variables, a table and a random generator."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("stateful") / "1"
    spec = tf.TensorSpec([None], tf.float32, name="x")
    root = tf.Module()
    root.weight, root.calls = tf.Variable(2.0), tf.Variable(0)
    root.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, -1.0)
    root.random = tf.random.Generator.from_seed(1)

    @tf.function(input_signature=[spec])
    def train(x):
        root.weight.assign_sub(tf.reduce_sum(x) + 1.0)
        return {"y": x * root.weight}

    @tf.function(input_signature=[spec])
    def count(x):
        root.calls.assign_add(1)
        return {"y": x + tf.cast(root.calls, tf.float32)}

    @tf.function(input_signature=[spec])
    def insert(x):
        keys = tf.cast(x, tf.int64)
        root.table.insert(keys, x)
        return {"y": root.table.lookup(keys)}

    @tf.function(input_signature=[spec])
    def draw(x):
        return {"y": x * 0 + root.random.normal(tf.shape(x))}

    @tf.function(input_signature=[spec])
    def state(x):
        return {
            "weight": x * 0 + root.weight,
            "calls": x * 0 + tf.cast(root.calls, tf.float32),
            "size": x * 0 + tf.cast(root.table.size(), tf.float32),
            "random": x * 0 + tf.cast(root.random.state[0] % 1000, tf.float32),
        }

    signatures = {"train": train, "count": count, "insert": insert, "draw": draw, "state": state}
    tf.saved_model.save(root, str(folder), signatures=signatures)
    return folder


@pytest.mark.parametrize("assumed", [(), ("*",)])
def test_loading_leaves_all_state_as_it_was_saved(stateful, assumed):
    plain = TensorFlowRuntime().load(stateful, SETTINGS)
    saved = plain.run("state", {"x": np.zeros(1, np.float32)})
    plain.close()
    settings = SETTINGS.model_copy(update={"batching": AdaptiveBatching(assumed=assumed)})
    model = ScheduledRuntime(TensorFlowRuntime()).load(stateful, settings)
    found = model.run("state", {"x": np.zeros(1, np.float32)})
    model.close()
    assert found == saved
    assert saved["weight"] == 2.0
    assert saved["size"] == saved["calls"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        AdaptiveBatching(slots=1, assumed=("*",)),
        BatchingParameters(
            max_batch_size=8,
            allowed_batch_sizes=(2, 4, 8),
            batch_timeout_micros=1000,
            num_batch_threads=1,
            max_enqueued_batches=100,
        ),
    ],
    ids=["adaptive", "parameters"],
)
def test_answers_are_those_of_each_request_alone(exports, settings):
    observed = []
    plain = TensorFlowRuntime().load(exports / "dense", SETTINGS)
    model = load(exports, "dense", settings, observed.append)
    generator = np.random.default_rng(0)
    requests = [{"x": generator.random((1 + n % 3, 8, 8, 2), dtype=np.float32)} for n in range(120)]
    together = threading.Barrier(8)

    def client(mine):
        together.wait()
        return [model.run("serving_default", request)["scores"] for request in mine]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client, [requests[n::8] for n in range(8)]))
    for first, scores in enumerate(answers):
        for request, score in zip(requests[first::8], scores, strict=True):
            expected = plain.run("serving_default", request)["scores"]
            np.testing.assert_allclose(score, expected, rtol=1e-5)
    assert sum(each.rows for each in observed) == sum(len(r["x"]) for r in requests)
    plain.close()
    model.close()


def test_strings_go_together_and_an_image_that_is_none_fails_alone(exports, png):
    model = load(exports, "images", AdaptiveBatching(slots=1, assumed=("*",)))
    for _ in range(3):
        model._policy.computed("serving_default", 1, 1.0)
        model._policy.computed("serving_default", 8, 1.0)
    bodies = [png(), b"none", png(white=False)]
    futures = [
        model.submit("serving_default", {"image_bytes": np.array([body], dtype=object)})
        for body in bodies
    ]
    assert futures[0].result(20)["label"].tolist() == [b"dog"]
    with pytest.raises(StatusError, match="Unknown image file format"):
        futures[1].result(20)
    assert futures[2].result(20)["label"].tolist() == [b"cat"]
    model.close()
