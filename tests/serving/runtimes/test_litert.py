from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.contracts.runtimes import RuntimeContract
from timonel.serving.protos.messages import meta_graph_pb2
from timonel.serving.runtimes.litert import LiteRtRuntime
from timonel.serving.selection.auto import AutoRuntime
from timonel.serving.selection.choice import runtime_of
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.status import Code, StatusError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "tflite"
CONTENT = (FIXTURES / "contract.tflite").read_bytes()
X = np.array([[1, 2], [-3, 4]], np.float32)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "1"
    made.mkdir()
    (made / "model.tflite").write_bytes(CONTENT)
    return made


class TestContract(RuntimeContract):
    @pytest.fixture
    def runtime(self):
        return LiteRtRuntime()

    @pytest.fixture
    def version(self, folder):
        return folder


def test_a_request_finds_no_state_of_others(folder):
    (folder / "model.tflite").write_bytes((FIXTURES / "running_sum.tflite").read_bytes())
    model = LiteRtRuntime().load(folder, RuntimeSettings(interpreters=1))
    one = {"x": np.ones((1, 1, 1), np.float32)}
    assert [model.run(name, one)["y"].item() for name in "bababb"] == [1] * 6


def test_requests_share_one_state_of_resource_variables(folder):
    (folder / "model.tflite").write_bytes((FIXTURES / "counter.tflite").read_bytes())
    model = LiteRtRuntime().load(folder, RuntimeSettings(interpreters=4))
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda _: model.run("serving_default", {"x": np.zeros((500_000, 2), np.float32)}),
            range(100),
        )
        counts = sorted(answer["y"][0, 0] for answer in answers)
    assert counts == list(range(1, 101))


def rewritten(change):
    """Return the fixture with its objects changed."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(CONTENT, 0))
    change(schema, model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def described():
    """Return the fixture with a SignatureDef in its metadata, as TensorFlow Serving reads it."""
    from flatbuffers import flexbuffers

    signature = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
    signature.inputs["given"].name = "serving_default_x:0"
    signature.outputs["twice"].name = "PartitionedCall:0"
    signature.outputs["label"].name = "PartitionedCall:1"
    builder = flexbuffers.Builder()
    with builder.Map():
        builder.Key("classify")
        builder.String(signature.SerializeToString().decode("latin-1"))

    def change(schema, model):
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(bytes(builder.Finish()), np.uint8)
        model.buffers.append(buffer)
        entry = schema.MetadataT()
        entry.name, entry.buffer = "signature_defs_metadata", len(model.buffers) - 1
        model.metadata = [*(model.metadata or []), entry]

    return rewritten(change)


def test_signatures_in_the_metadata(folder):
    content = described()
    (folder / "model.tflite").write_bytes(content)
    assert list(LiteRtRuntime().load(folder, RuntimeSettings()).signatures) == ["classify"]
    model = LiteRtRuntime().load(folder, RuntimeSettings(prefer_tflite=True))
    signature = model.signatures["classify"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert signature.inputs["given"].shape == (-1, 2)
    answer = model.run("classify", {"given": X})
    assert answer["twice"].tolist() == (2 * X).tolist()
    assert answer["label"].tolist() == [b"yes", b"no"]
    model.close()


def test_tensorflow_serving_takes_names_of_tensors_where_there_is_no_metadata(folder):
    """Of outputs with one name before the colon the last one counts."""
    model = LiteRtRuntime().load(folder, RuntimeSettings(prefer_tflite=True))
    signature = model.signatures["serving_default"]
    assert list(signature.inputs) == ["serving_default_x"]
    answer = model.run("serving_default", {"serving_default_x": X})
    assert answer["PartitionedCall"].tolist() == [b"yes", b"no"]
    model.close()


def test_no_signatures_at_all(folder):
    def change(schema, model):
        model.signatureDefs = []

    (folder / "model.tflite").write_bytes(rewritten(change))
    model = LiteRtRuntime().load(folder, RuntimeSettings())
    assert list(model.signatures) == ["serving_default"]
    assert model.run("serving_default", {"serving_default_x": X}).keys() == {"PartitionedCall"}
    model.close()


def test_sizes_of_batches_come_and_go(folder):
    model = LiteRtRuntime().load(folder, RuntimeSettings(interpreters=3))

    def ask(rows):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        return bool((model.run("serving_default", {"x": x})["doubled"] == 2 * x).all())

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, [1, 7, 0, 3, 64, 2, 1, 1000] * 20))
    model.close()


def test_fixed_batches_are_resized(folder):
    """As TensorFlow Serving does; what the operations do not take is the request's error."""

    def fix(schema, model):
        for tensor in model.subgraphs[0].tensors:
            if tensor.shapeSignature is not None and len(tensor.shapeSignature):
                tensor.shapeSignature = None

    (folder / "model.tflite").write_bytes(rewritten(fix))
    model = LiteRtRuntime().load(folder, RuntimeSettings())
    assert model.signatures["serving_default"].inputs["x"].shape == (-1, 2)
    assert model.run("serving_default", {"x": X})["doubled"].tolist() == (2 * X).tolist()
    for wrong in (np.zeros((1 << 40, 0), np.float32), np.zeros((1,) * 9, np.float32)):
        with pytest.raises(StatusError) as caught:
            model.run("serving_default", {"x": wrong})
        assert caught.value.code is Code.INVALID_ARGUMENT
    model.close()


@pytest.mark.parametrize("name", ["FlexReadFile", "FlexWriteFile", "MyOwn"])
def test_operations_of_tensorflow_and_others_do_not_load(folder, name):
    def add(schema, model):
        code = model.operatorCodes[0]
        code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
        code.builtinCode, code.customCode = schema.BuiltinOperator.CUSTOM, name

    (folder / "model.tflite").write_bytes(rewritten(add))
    with pytest.raises(StatusError, match=name) as caught:
        LiteRtRuntime().load(folder, RuntimeSettings())
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_refused_request_costs_nobody_else(folder):
    model = LiteRtRuntime().load(folder, RuntimeSettings(interpreters=1))
    for wrong in (np.zeros((), np.float32), np.zeros((2, 2), np.int32), np.zeros(3, np.float32)):
        with contextlib.suppress(StatusError):
            model.run("serving_default", {"x": wrong})
        assert model.run("serving_default", {"x": X})["doubled"].tolist() == (2 * X).tolist()
    model.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", CONTENT[:40], CONTENT[:8] + b"\xff" * 200, CONTENT[: len(CONTENT) // 2]],
    ids=["empty", "nonsense", "head", "offsets", "half"],
)
def test_a_damaged_file_is_told(folder, content):
    (folder / "model.tflite").write_bytes(content)
    with pytest.raises(StatusError) as caught:
        LiteRtRuntime().load(folder, RuntimeSettings())
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_it_is_preferred_where_it_is_there(folder, exports):
    preferring = RuntimeSettings(prefer_tflite=True)
    assert runtime_of(folder, preferring) == "litert"
    assert runtime_of(exports / "doubler", preferring) == "tensorflow"
    # Nothing else is in the folder.
    assert runtime_of(folder, RuntimeSettings(name="auto")) == "litert"
    assert runtime_of(exports / "doubler", RuntimeSettings(name="auto")) == "tensorflow"
    assert runtime_of(folder, RuntimeSettings(name="auto", by_model={"m": "litert"}).of("m")) == (
        "litert"
    )


def test_both_runtimes_live_in_one_process(folder, exports):
    runtime = AutoRuntime()
    preferring = RuntimeSettings(prefer_tflite=True)
    lite = runtime.load(folder, preferring)
    full = runtime.load(exports / "doubler", preferring)
    assert (lite.platform, full.platform) == ("litert_tflite", "tensorflow_savedmodel")
    for _ in range(3):
        answer = lite.run("serving_default", {"serving_default_x": X})
        assert answer["PartitionedCall"].tolist() == [b"yes", b"no"]
        assert full.run("serving_default", {"x": X})["doubled"].tolist() == (2 * X).tolist()
    lite.close()
    full.close()
    with pytest.raises(StatusError, match="there is no runtime other"):
        runtime.load(folder, RuntimeSettings(name="other"))


@pytest.mark.process
def test_importing_it_starts_no_thread_and_no_tensorflow():
    """A process that has imported it can still fork."""
    code = (
        "import os, sys, ai_edge_litert.interpreter; import timonel.serving.runtimes.litert;"
        "print(len(os.listdir('/proc/self/task')), 'tensorflow' in sys.modules)"
    )
    environment = {"OPENBLAS_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "False"]


def test_litert_is_as_we_know_it():
    """A release that changes it must be looked at before it is supported."""
    from ai_edge_litert import interpreter

    taken = inspect.signature(interpreter.Interpreter.__init__).parameters
    assert {"model_content", "num_threads"} <= taken.keys()
    own = interpreter.Interpreter(model_content=CONTENT, num_threads=1)
    runner = own.get_signature_runner("serving_default")
    assert type(runner(x=X)) is dict
