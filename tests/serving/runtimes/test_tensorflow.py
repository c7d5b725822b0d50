from __future__ import annotations

import gc
import inspect
import itertools
import os
import subprocess
import sys
import types
import weakref

import numpy as np
import pytest

from timonel.serving.inference.classification import MultiInferenceTask, infer
from timonel.serving.runtimes import _private, tensorflow
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime, without_graph
from timonel.serving.settings import RuntimeSettings
from timonel.serving.signature import CLASSIFY, REGRESS
from timonel.serving.status import Code, StatusError
from timonel.testing.runtimes import RuntimeContract

SETTINGS = RuntimeSettings(intra_op_threads=1, inter_op_threads=1)


@pytest.mark.process
class TestContract(RuntimeContract):
    @pytest.fixture
    def runtime(self):
        return TensorFlowRuntime()

    @pytest.fixture
    def version(self, exports):
        return exports / "doubler"


@pytest.fixture
def shapes(exports):
    model = TensorFlowRuntime().load(exports / "shapes", SETTINGS)
    yield model
    model.close()


def test_scalars_bytes_and_unequal_sizes(shapes):
    outputs = shapes.run("serving_default", {"n": np.array(3, np.int32)})
    assert outputs["squared"] == 9
    assert outputs["squared"].shape == ()
    assert outputs["range"].tolist() == [0, 1, 2]
    assert outputs["raw_bytes"].item() == b"\xff\x00"


def test_shapes_are_the_kernels_business(exports):
    model = TensorFlowRuntime().load(exports / "versioned-2", SETTINGS)
    # A session would refuse a matrix for the [-1] placeholder; TensorFlow Serving does not.
    outputs = model.run("serving_default", {"x": np.ones((2, 2), np.float32)})
    assert outputs["y"].tolist() == [[2, 2], [2, 2]]
    model.close()


def test_kernel_errors_keep_their_text(exports):
    model = TensorFlowRuntime().load(exports / "images", SETTINGS)
    images = np.array([b"no image"], dtype=object)
    with pytest.raises(StatusError, match="Unknown image file format") as caught:
        model.run("serving_default", {"image_bytes": images})
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert "[[" not in caught.value.message
    assert "node" not in caught.value.message
    model.close()


SEVERAL = """2 root error(s) found.
  (0) INVALID_ARGUMENT: Bad size [2,3]
\t [[{{node a}}]]
  (1) INVALID_ARGUMENT: Bad size [2,3]
\t [[{{node b}}]]
0 successful operations.
0 derived errors ignored."""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("No.\n\t [[{{function_node map_body_29}}{{node map/Decode}}]]\n\t [[map/while]]", "No."),
        (SEVERAL, "Bad size [2,3]"),
        ("{{function_node __wrapped__MatMul}} In[0]: [1,2] [Op:MatMul]", "In[0]: [1,2]"),
        ("expected [[1, 2], [3, 4]], got [[1]]", "expected [[1, 2], [3, 4]], got [[1]]"),
    ],
)
def test_clients_are_not_told_of_graphs(message, expected):
    assert without_graph(message) == expected


@pytest.mark.slow
def test_a_damaged_graph_and_missing_variables_are_told(exports, tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01nonsense")
    with pytest.raises(StatusError) as caught:
        TensorFlowRuntime().load(tmp_path, SETTINGS)
    assert caught.value.message
    (tmp_path / "saved_model.pb").write_bytes(
        (exports / "versioned-1" / "saved_model.pb").read_bytes()
    )
    with pytest.raises(StatusError) as caught:
        TensorFlowRuntime().load(tmp_path, SETTINGS)
    assert caught.value.message


def test_other_tags_are_not_there(exports):
    with pytest.raises(StatusError, match="gpu"):
        TensorFlowRuntime().load(exports / "doubler", RuntimeSettings(tags=("gpu",)))


@pytest.mark.slow
def test_unloading_frees_the_graph(exports):
    model = TensorFlowRuntime().load(exports / "versioned-1", SETTINGS)
    model.run("serving_default", {"x": np.ones(1, np.float32)})
    graph = weakref.ref(model._session.graph)
    model.close()
    del model
    gc.collect()
    assert graph() is None


def test_the_private_api_is_as_we_know_it():
    """A release that changes it must be looked at before it is supported."""
    import tensorflow as tf

    method = tf.compat.v1.Session._make_callable_from_options
    assert list(inspect.signature(method).parameters) == ["self", "callable_options"]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 1], name="x")
        tf.identity(2 * x, name="y")
        call = _private.make_callable(session, ["x:0"], ["y:0"])
        (plain,) = call(np.ones(3, np.float32))
        assert plain.tolist() == [2, 2, 2]
        assert plain.dtype == np.float32
        with pytest.raises(tf.errors.InvalidArgumentError):
            call(np.ones(3, np.float64))


@pytest.mark.process
@pytest.mark.parametrize(
    ("legacy", "keras"), [("0", "keras"), pytest.param("1", "tf_keras", marks=pytest.mark.soak)]
)
def test_tensorflow_comes_without_keras_until_somebody_asks_for_it(legacy, keras):
    asked = (
        "import sys\n"
        "from timonel.serving.runtimes import _private\n"
        "_private.import_tensorflow()\n"
        f"print('{keras}' in sys.modules, 'sklearn' in sys.modules)\n"
        "print('h5py' in sys.modules, 'scipy.sparse' in sys.modules)\n"
        "from tensorflow.keras.layers import Dense\n"
        f"import tensorflow as tf, {keras}\n"
        f"print(Dense is {keras}.layers.Dense, tf.keras.Model is {keras}.Model)\n"
        "print(tf.keras.optimizers.get('adam').name)\n"
        "import h5py, io, scipy.sparse\n"
        "model = tf.keras.Sequential([tf.keras.Input((2,)), Dense(1)])\n"
        "with h5py.File(io.BytesIO(), 'w') as file:\n"
        "    file['x'] = model(scipy.sparse.eye(2).toarray())\n"
        "    print(file['x'].shape)\n"
    )
    environ = {**os.environ, "TF_USE_LEGACY_KERAS": legacy}
    done = subprocess.run(
        [sys.executable, "-c", asked], env=environ, capture_output=True, text=True, check=True
    )
    words = done.stdout.lower().replace(", ", ",").split()
    assert words == [*["false"] * 4, *["true"] * 2, "adam", "(2,1)"]


def test_freezing_is_as_we_know_it(exports):
    """Names of inputs in their order, and outputs in that of their names."""
    import tensorflow as tf
    from tensorflow.python.framework import convert_to_constants

    function = tf.saved_model.load(str(exports / "table")).signatures["serving_default"]
    frozen = convert_to_constants.convert_variables_to_constants_v2(function)
    assert sorted(function._arg_keywords) == ["age", "name", "seats"]
    assert [tensor.dtype for tensor in frozen.inputs] == [
        {"age": tf.float32, "name": tf.string, "seats": tf.float32}[name]
        for name in function._arg_keywords
    ]
    assert [name for name, _ in _private.registered_operations()].count("MatMul") == 1


_THREADS = """
import os, sys
from pathlib import Path
from timonel.serving.settings import RuntimeSettings
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime, without_graph
TensorFlowRuntime().prepare()
before = len(os.listdir("/proc/self/task"))
TensorFlowRuntime().load(Path(sys.argv[1]), RuntimeSettings(intra_op_threads=40))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.process
def test_operations_have_as_many_threads_as_asked(exports):
    # In a process of its own: the first session of one decides for all.
    command = [sys.executable, "-c", _THREADS, str(exports / "doubler")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Others are for operations side by side, as many as there are cores.
    assert 40 <= int(done.stdout) <= 40 + (os.cpu_count() or 1) + 4


def test_choices_of_outputs_do_not_add_up(exports, monkeypatch):
    monkeypatch.setattr(tensorflow, "_MAX_CALLABLES", 1)
    model = TensorFlowRuntime().load(exports / "shapes", SETTINGS)
    inputs = {"n": np.array(3, np.int32)}
    names = list(model.signatures["serving_default"].outputs)
    choices = [c for n in range(1, len(names) + 1) for c in itertools.permutations(names, n)]
    together = model.run("serving_default", inputs)
    for chosen in choices:
        found = model.run("serving_default", inputs, list(chosen))
        assert list(found) == list(chosen)
        assert all(repr(found[name]) == repr(together[name]) for name in chosen)
    assert len(choices) > 10
    assert len(model._callables) <= 1 + len(model.signatures) + 1
    model.close()


def test_multi_inference_feeds_every_signature_of_tensorflow_2(tmp_path):
    import tensorflow as tf

    module = tf.Module()
    features = {"x": tf.io.FixedLenFeature([], tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def regress(inputs):
        return {"outputs": tf.io.parse_example(inputs, features)["x"] * 2}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def classify(inputs):
        x = tf.io.parse_example(inputs, features)["x"]
        return {"scores": tf.stack([x, -x], 1)}

    module.kept = regress, classify
    signatures = {"regress": regress, "classify": classify}
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=signatures)
    model = TensorFlowRuntime().load(tmp_path / "1", SETTINGS)
    tensors = {each.inputs["inputs"].tensor for each in model.signatures.values() if each.inputs}
    assert len(tensors) == 2
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.append(1.5)
    plane = types.SimpleNamespace(find=model.signatures.get)
    tasks = [
        MultiInferenceTask("m", "regress", REGRESS),
        MultiInferenceTask("m", "classify", CLASSIFY),
    ]
    values, classes = (
        question.read(model.run(question.signature.name, question.inputs, question.outputs))
        for question in infer(plane, tasks, [example.SerializeToString()])
    )
    assert values.tolist() == [3]
    assert [score for _, score in classes.rows()[0]] == [1.5, -1.5]
    model.close()
