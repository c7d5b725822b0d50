from __future__ import annotations

import gc
import inspect
import itertools
import os
import shutil
import subprocess
import sys
import types
import weakref

import numpy as np
import pytest

from tests.contracts.runtimes import RuntimeContract
from timonel.models.safety import op_libraries
from timonel.serving.inference.classification import MultiInferenceTask, infer
from timonel.serving.runtimes import _private, tensorflow
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime, without_graph
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import CLASSIFY, REGRESS
from timonel.serving.status import Code, StatusError

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


def test_errors_that_quote_other_bytes_than_utf8_are_readable(tmp_path):
    import tensorflow as tf

    class Numbers(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "x")])
        def parse(self, x):
            return {"y": tf.strings.to_number(x)}

    module = Numbers()
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.parse})
    model = TensorFlowRuntime().load(tmp_path, SETTINGS)
    with pytest.raises(StatusError) as caught:
        model.run("serving_default", {"x": np.array([b"\xff\xfeabc"], object)})
    message = "StringToNumberOp could not correctly convert string: \\xff\\xfeabc"
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, message)
    model.close()


SEVERAL = """2 root error(s) found.
  (0) INVALID_ARGUMENT: Bad size [2,3]
\t [[{{node a}}]]
  (1) INVALID_ARGUMENT: Bad size [2,3]
\t [[{{node b}}]]
0 successful operations.
0 derived errors ignored."""


def test_a_file_that_cannot_be_checked_is_damaged_and_not_refused(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"garbage")
    with pytest.raises(StatusError, match="cannot be read: Error parsing") as caught:
        TensorFlowRuntime().load(tmp_path, RuntimeSettings(safe_loading=True))
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_what_is_loaded_was_checked(exports, tmp_path, monkeypatch):
    folder = tmp_path / "1"
    shutil.copytree(exports / "doubler", folder)
    check = tensorflow.check_saved_model

    def checked(path, allowed):
        found = check(path, allowed)
        (path / "saved_model.pb").unlink()
        shutil.copy(exports / "versioned-3" / "saved_model.pb", path)
        return found

    monkeypatch.setattr(tensorflow, "check_saved_model", checked)
    model = TensorFlowRuntime().load(folder, SETTINGS)
    outputs = model.run("serving_default", {"x": np.ones((1, 2), np.float32)})
    assert set(outputs) == set(model.signatures["serving_default"].outputs)
    assert outputs["doubled"].tolist() == [[2, 2]]
    model.close()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("No.\n\t [[{{function_node map_body_29}}{{node map/Decode}}]]\n\t [[map/while]]", "No."),
        (SEVERAL, "Bad size [2,3]"),
        ("{{function_node __wrapped__MatMul}} In[0]: [1,2] [Op:MatMul]", "In[0]: [1,2]"),
        ("expected [[1, 2], [3, 4]], got [[1]]", "expected [[1, 2], [3, 4]], got [[1]]"),
        (
            'KeyError: 1\nTraceback (most recent call last):\n\n  File "/a.py", line 1',
            "KeyError: 1",
        ),
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


@pytest.mark.slow
def test_the_runtime_refuses_before_it_loads(tmp_path):
    import tensorflow as tf

    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "x")])
    def run(x):
        return {"y": tf.py_function(lambda t: t, [x], tf.string)}

    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": run})
    with pytest.raises(StatusError, match="Safe loading rejects the model: EagerPyFunc") as caught:
        TensorFlowRuntime().load(tmp_path, SETTINGS)
    assert caught.value.code is Code.PERMISSION_DENIED
    for update in ({"allow_ops": {"*": ("EagerPyFunc",)}}, {"safe_loading": False}):
        TensorFlowRuntime().load(tmp_path, SETTINGS.model_copy(update=update)).close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "declared", "accepted"),
    [(None, (), None), (None, (-1, 1), (-1, 1)), ([None, 1], (), (-1, 1)), ([], (), ())],
)
def test_inputs_have_the_shapes_of_the_graph(tmp_path, shape, declared, accepted):
    """Not those of the signature: early releases declared unknown shapes as scalars."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, shape, name="x")
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": x * 0.5 + 2.0})
        size = signature.inputs["x"].tensor_shape
        size.Clear()
        for each in declared:
            size.dim.add(size=each)
        builder = v1.saved_model.builder.SavedModelBuilder(str(tmp_path / "1"))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    model = TensorFlowRuntime().load(tmp_path / "1", SETTINGS)
    assert model.signatures["serving_default"].inputs["x"].shape == accepted
    for given in ([2.0], [[2.0]], 2.0):
        answer = model.run("serving_default", {"x": np.array(given, np.float32)})
        assert answer["y"].tolist() == (np.array(given) * 0.5 + 2).tolist()
    model.close()


def _kernels_without_checks(x):
    """Return kernels that would abort the process for ranks other than these."""
    import tensorflow as tf

    raw = tf.raw_ops
    four, five = {"strides": [1] * 4, "padding": "SAME"}, {"strides": [1] * 5, "padding": "SAME"}
    depthwise = raw.DepthwiseConv2dNative(input=x, filter=tf.ones([1, 1, 1, 1]), **four)
    pooled = raw.MaxPool3D(input=x, ksize=[1] * 5, **five)
    one, half = tf.ones([1, 1]), tf.constant(0.5)
    boxes = raw.CombinedNonMaxSuppression(
        boxes=tf.ones([1, 1, 1, 4]), scores=x, max_output_size_per_class=1, max_total_size=1,
        iou_threshold=half, score_threshold=half,
    )  # fmt: skip
    return {
        "Conv2D": (raw.Conv2D(input=x, filter=tf.ones([1, 1, 1, 1]), **four), 4),
        "DepthwiseConv2dNative": (depthwise, 4),
        "Conv3D": (raw.Conv3D(input=x, filter=tf.ones([1, 1, 1, 1, 1]), **five), 5),
        "MaxPool3D": (pooled, 5),
        "LSTMBlockCell": (_lstm(x, one, one), 2),
        "LSTMBlockCell's state": (_lstm(one, x, one), 2),
        "LSTMBlockCell's output": (_lstm(one, one, x), 2),
        "CombinedNonMaxSuppression": (boxes.nmsed_scores, 3),
    }


def _lstm(x, state, output):
    import tensorflow as tf

    weights, gate, bias = tf.ones([2, 4]), tf.ones([1]), tf.ones([4])
    parts = {"w": weights, "wci": gate, "wcf": gate, "wco": gate, "b": bias}
    return tf.raw_ops.LSTMBlockCell(x=x, cs_prev=state, h_prev=output, **parts).h


@pytest.mark.slow
@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize(
    "kernel",
    [
        "Conv2D",
        "DepthwiseConv2dNative",
        "Conv3D",
        "MaxPool3D",
        "LSTMBlockCell",
        "LSTMBlockCell's state",
        "LSTMBlockCell's output",
        "CombinedNonMaxSuppression",
    ],
)
def test_no_rank_of_an_input_without_one_ends_the_process(tmp_path, kernel, declares):
    import tensorflow as tf

    ranks = {}

    @tf.function(input_signature=[tf.TensorSpec(None, name="x")])
    def within_a_function(x):
        made, ranks["right"] = _kernels_without_checks(x * 2.0)[kernel]
        return {"y": made}

    tf.saved_model.save(tf.Module(), str(tmp_path / "1"), within_a_function)
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, None, name="x")
        made = _kernels_without_checks(x * 2.0)[kernel][0]
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": made})
        if not declares:  # as early releases of TensorFlow
            signature.inputs["x"].tensor_shape.Clear()
        builder = v1.saved_model.builder.SavedModelBuilder(str(tmp_path / "2"))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    for version in ("1", "2"):
        model = TensorFlowRuntime().load(tmp_path / version, SETTINGS)
        for rank in range(9):
            ones = np.ones([1] * rank, np.float32)
            if rank == ranks["right"]:
                answer = model.run("serving_default", {"x": ones})
                if "Conv" in kernel or "Pool" in kernel:
                    assert answer["y"].tolist() == (ones * 2).tolist()
                continue
            with pytest.raises(StatusError) as caught:
                model.run("serving_default", {"x": ones})
            assert caught.value.code is Code.INVALID_ARGUMENT
        model.close()


_OP_LIBRARY = """
import ctypes
from pathlib import Path

import tensorflow as tf

library = ctypes.CDLL(str(Path(tf.__file__).parent / "libtensorflow_framework.so.2"))
for each in ("TF_NewOpDefinitionBuilder", "TF_NewStatus", "TF_NewKernelBuilder"):
    getattr(library, each).restype = ctypes.c_void_p
builder = ctypes.c_void_p(library.TF_NewOpDefinitionBuilder(b"CaseFoldUTF8"))
status = ctypes.c_void_p(library.TF_NewStatus())
library.TF_RegisterOpDefinition(builder, status)
kernel = library.TF_NewKernelBuilder(b"CaseFoldUTF8", b"CPU", None, None, None)
library.TF_RegisterKernelBuilder(b"CaseFoldUTF8", ctypes.c_void_p(kernel), status)
"""


@pytest.mark.slow
def test_op_libraries_bring_operations_that_are_allowed(exports, tmp_path, monkeypatch):
    from timonel.models.protos import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString(
        (exports / "doubler" / "saved_model.pb").read_bytes()
    )
    saved.meta_graphs[0].graph_def.node.add(name="text", op="CaseFoldUTF8")
    shutil.copytree(exports / "doubler", tmp_path / "1")
    (tmp_path / "1" / "saved_model.pb").write_bytes(saved.SerializeToString())
    (tmp_path / "op_library_of_a_test.py").write_text(_OP_LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)

    def load(**options):
        TensorFlowRuntime().load(tmp_path / "1", SETTINGS.model_copy(update=options)).close()

    with pytest.raises(StatusError, match="CaseFoldUTF8 is an operation of tensorflow_text"):
        load()
    with pytest.raises(StatusError, match="lacks the operation CaseFoldUTF8, which") as caught:
        load(safe_loading=False)
    assert "pip install tensorflow_text, and add --op-library" in str(caught.value)
    with pytest.raises(StatusError, match="cannot load the op library nowhere: No module"):
        load(op_libraries=("nowhere",))
    with pytest.raises(StatusError, match="cannot load the op library nowhere"):
        load(op_libraries=("nowhere.so",))
    for _ in range(2):
        load(op_libraries=("op_library_of_a_test",))


@pytest.mark.slow
def test_graphs_for_other_devices_run_here_and_causes_are_told(tmp_path):
    import tensorflow as tf

    v1 = tf.compat.v1
    soft = v1.ConfigProto(allow_soft_placement=True)
    with tf.Graph().as_default(), v1.Session(config=soft) as session, tf.device("/gpu:7"):
        x = v1.placeholder(tf.float32, [None], name="x")
        scale = v1.get_variable("scale", initializer=0.5, use_resource=False)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "1"), {"x": x}, {"y": x * scale})
    model = TensorFlowRuntime().load(tmp_path / "1", SETTINGS)
    answer = model.run("serving_default", {"x": np.ones(2, np.float32)})
    assert answer["y"].tolist() == [0.5, 0.5]
    model.close()
    index = tmp_path / "1" / "variables" / "variables.index"
    index.write_bytes(index.read_bytes()[:-8])
    with pytest.raises(StatusError) as caught:
        TensorFlowRuntime().load(tmp_path / "1", SETTINGS)
    assert caught.value.message == "not an sstable (bad magic number)"


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
        call = _private.make_callable(session, ["x:0"], ["y:0"], in_callers=True)
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
    assert [name for name, _ in op_libraries.registered_operations()].count("MatMul") == 1


_THREADS = """
import gc, os, sys
from pathlib import Path
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.runtimes._private import import_tensorflow
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime, without_graph
import_tensorflow()
assert gc.get_freeze_count() > 100_000, "full collections traverse TensorFlow's modules"
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
        question.read(model.run(question.run.signature.name, *question.run[1:]))
        for question in infer(plane, tasks, [example.SerializeToString()])
    )
    assert values.tolist() == [3]
    assert [score for _, score in classes[0]] == [1.5, -1.5]
    model.close()


@pytest.mark.process
@pytest.mark.slow
def test_endless_requests_and_initializers_stop_no_other_model(tmp_path):
    """In a process of its own, as threads in TensorFlow cannot be ended."""
    script = tmp_path / "script.py"
    script.write_text(_ENDLESS)
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout == "[2.0]\n", done.stderr


_ENDLESS = """
import os, sys, threading
from pathlib import Path
import numpy as np
import tensorflow as tf
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.settings.runtime import RuntimeSettings

v1, folder, running = tf.compat.v1, Path(sys.argv[1]), threading.Semaphore(0)
graphs = []  # they own `tell`

def tell(value):
    running.release()
    return value

def endless(x):
    once = tf.numpy_function(tell, [x], tf.float32)
    body = lambda i, y: (i * 0, y)
    return v1.while_loop(lambda i, y: tf.math.is_finite(i), body, [once[0], x])[1]

def save(name, output, init=None):
    graphs.append(tf.Graph())
    with graphs[-1].as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None])
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": output(x)})
        builder = v1.saved_model.Builder(str(folder / name))
        main = None if init is None else tf.group(init(tf.ones([1])))
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, main_op=main
        )
        builder.save()

save("good", lambda x: 2 * x)
save("request", endless)
save("initializer", lambda x: x, endless)
runtime, settings = TensorFlowRuntime(), RuntimeSettings(safe_loading=False)
inputs = {"x": np.ones(1, np.float32)}
hung = runtime.load(folder / "request", settings)
for _ in range(os.cpu_count()):
    for work in (
        lambda: hung.run("serving_default", inputs),
        lambda: runtime.load(folder / "initializer", settings),
    ):
        threading.Thread(target=work, daemon=True).start()
        running.acquire()
good = runtime.load(folder / "good", settings)
print(good.run("serving_default", inputs)["y"].tolist(), flush=True)
os._exit(0)
"""


def test_a_signature_with_a_tensor_that_the_graph_lacks_is_the_clients_error(tmp_path):
    import tensorflow as tf

    from timonel.models.protos import saved_model_pb2

    module = tf.Module()
    double = tf.function(
        lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None], tf.float32, "x")]
    )
    tf.saved_model.save(module, tmp_path, signatures={"serving_default": double})
    file = tmp_path / "saved_model.pb"
    changed = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    signatures = changed.meta_graphs[0].signature_def
    signatures["odd"].CopyFrom(signatures["serving_default"])
    signatures["odd"].outputs["y"].name = "gone:0"
    file.write_bytes(changed.SerializeToString())
    model = TensorFlowRuntime().load(tmp_path, RuntimeSettings())
    x = {"x": np.ones(1, np.float32)}
    with pytest.raises(StatusError, match="gone:0") as caught:
        model.run("odd", x)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert model.run("serving_default", x)["y"].tolist() == [2]
