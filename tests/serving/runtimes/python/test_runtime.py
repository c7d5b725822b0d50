"""Python models as the server loads them: in processes of their own."""

from __future__ import annotations

import contextlib
import pickle

import numpy as np
import psutil
import pytest

from tests.contracts.runtimes import RuntimeContract
from tests.serving.batching.runtime import ScheduledRuntime
from tests.serving.runtimes.python.conftest import DOUBLER, write_version
from tests.waiting import until
from timonel.serving.runtimes.child import ChildRuntime
from timonel.serving.selection.auto import PYTHON_RUNTIME as PYTHON
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import DEFAULT_SIGNATURE
from timonel.serving.status import Code, StatusError

BATCHES = []
ONE = {"x": np.ones(1, np.float32)}

FAULTY = """
    import os, sys, time, ctypes

    class PythonModel:
        inputs = {"do": ("string", []), "x": ("float32", None)}
        outputs = {"y": ("float32", None)}
        threads = 4
        kept = []

        def predict(self, inputs):
            return {"y": getattr(self, inputs["do"].item().decode())(inputs["x"])}

        def double(self, x):
            return 2 * x

        def pid(self, x):
            return float(os.getpid())

        def refuse(self, x):
            raise ValueError("no such city\\nsecond line")

        def fail(self, x):
            return {}[3]

        def leave(self, x):
            sys.exit(3)

        def exit(self, x):
            os._exit(3)

        def crash(self, x):
            ctypes.string_at(0)

        def hang(self, x):
            time.sleep(3600)

        def leak(self, x):
            self.kept.append(bytearray(b"x" * 100_000_000))
            return x

        def wrong(self, x):
            return "text"
"""


@pytest.fixture(scope="module")
def runtime():
    apart = ChildRuntime(PYTHON, timeout_s=2.0)
    return ScheduledRuntime(apart, BATCHES.append)


@pytest.fixture
def load(runtime, tmp_path):
    """Write code as a version and load it."""
    with contextlib.ExitStack() as stack:

        def do(code, files=None, number=1):
            version = write_version(tmp_path / "m" / str(number), code, files)
            model = runtime.load(version, RuntimeSettings())
            stack.callback(model.close)
            return model

        yield do


@pytest.fixture
def faulty(load):
    model = load(FAULTY)

    def ask(do, **options):
        return model.submit(DEFAULT_SIGNATURE, doing(do), **options)

    return ask


def doing(do):
    return {"do": np.array(do.encode(), object), "x": np.ones(2, np.float32)}


def failure(future):
    error = future.exception(20)
    assert isinstance(error, StatusError)
    return error.code, error.message


@pytest.mark.process
class TestContract(RuntimeContract):
    @pytest.fixture
    def runtime(self, runtime):
        return runtime

    @pytest.fixture
    def version(self, doubler):
        return doubler


@pytest.mark.process
def test_two_versions_with_a_module_of_the_same_name_do_not_clash(load):
    code = """
        from helper import FACTOR

        class PythonModel:
            inputs = {"x": ("float32", [None])}
            outputs = {"y": ("float32", [None])}

            def predict(self, inputs):
                return {"y": inputs["x"] * FACTOR}
    """
    first = load(code, {"helper.py": "FACTOR = 2"}, 1)
    second = load(code, {"helper.py": "FACTOR = 3"}, 2)
    assert first.run(DEFAULT_SIGNATURE, ONE)["y"].tolist() == [2]
    assert second.run(DEFAULT_SIGNATURE, ONE)["y"].tolist() == [3]


@pytest.mark.process
def test_nothing_is_written_into_the_version(load, tmp_path):
    load(
        "import helper\n" + "class PythonModel:\n  inputs = outputs = {'x': ('int8', [])}\n"
        "  def predict(self, inputs): return inputs\n",
        {"helper.py": ""},
    )
    assert sorted(path.name for path in (tmp_path / "m" / "1").iterdir()) == [
        "assets.extra",
        "helper.py",
        "model.py",
    ]


@pytest.mark.process
def test_what_was_pickled_with_the_codes_own_classes_is_found(load, tmp_path):
    pickled = b"\x80\x04cmodel\nScaler\n)\x81}\x8c\x01f\x4b\x03sb."
    assert pickle.PROTO in pickled
    model = load(
        """
        import pickle

        class Scaler:
            pass

        class PythonModel:
            inputs = outputs = {"x": ("float32", [None])}

            def load(self, directory):
                hexed = (directory / "scaler.hex").read_text()
                self.scaler = pickle.loads(bytes.fromhex(hexed))

            def predict(self, inputs):
                return {"x": inputs["x"] * self.scaler.f}
        """,
        {"scaler.hex": pickled.hex()},
    )
    assert model.run(DEFAULT_SIGNATURE, ONE)["x"].tolist() == [3]


@pytest.mark.process
def test_tensors_may_be_declared_by_load_and_further_signatures_by_name(load):
    model = load(
        """
        class PythonModel:
            signatures = {
                "length": ({"text": ("string", [None])}, {"length": ("int64", [None])}),
            }

            def load(self, directory):
                self.inputs = {"b": ("int32", []), "a": ("int32", [])}
                self.outputs = {"sum": ("int32", [])}

            def predict(self, inputs):
                return {"sum": inputs["a"] + inputs["b"]}

            def length(self, inputs):
                return {"length": [len(text) for text in inputs["text"]]}
        """
    )
    assert list(model.signatures[DEFAULT_SIGNATURE].inputs) == ["b", "a"]
    assert model.signatures["length"].method_name == "tensorflow/serving/predict"
    numbers = {"a": np.array(1, np.int32), "b": np.array(2, np.int32)}
    assert model.run(DEFAULT_SIGNATURE, numbers)["sum"] == 3
    texts = {"text": np.array([b"", b"abc"], object)}
    assert model.run("length", texts)["length"].tolist() == [0, 3]


@pytest.mark.process
def test_rows_of_different_requests_are_put_together_only_where_that_is_declared(load):
    code = """
        import time

        class PythonModel:
            inputs = {"x": ("float32", [None])}
            outputs = {"size": ("int64", [None])}
            batchable = BATCHABLE

            def predict(self, inputs):
                time.sleep(0.01)
                return {"size": [len(inputs["x"])] * len(inputs["x"])}
    """
    for number, together in ((1, False), (2, True)):
        model = load(code.replace("BATCHABLE", str(together)), number=number)
        BATCHES.clear()
        asked = [model.submit(DEFAULT_SIGNATURE, ONE) for _ in range(20)]
        sizes = [future.result(20)["size"].item() for future in asked]
        assert (max(sizes) > 1) is together
        assert bool(BATCHES) is together


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1", "model.py defines no class PythonModel"),
        ("def broken(:", "importing model.py failed: SyntaxError"),
        ("import no_such_module", "importing model.py failed: ModuleNotFoundError"),
        ("raise SystemExit", "importing model.py failed: SystemExit"),
        ("class PythonModel: pass", "declare the inputs of model.py as in"),
        (
            "class PythonModel:\n  inputs = {'x': ('int8', [])}",
            "declare the outputs of model.py as in",
        ),
        (
            "class PythonModel:\n  inputs = outputs = {'x': ('int8', [])}",
            "PythonModel in model.py has no method predict",
        ),
        (
            "class PythonModel:\n  signatures = 3",
            "signatures of PythonModel must map names",
        ),
        (
            "class PythonModel:\n  threads = 0\n  signatures = {}",
            "threads of PythonModel must be 1 or more, got 0",
        ),
        (
            "class PythonModel:\n  def load(self, directory): open(directory / 'weights')",
            "load failed: FileNotFoundError",
        ),
    ],
)
def test_code_that_is_no_model_is_refused_in_a_line(load, code, words):
    with pytest.raises(StatusError) as caught:
        load(code)
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert caught.value.message.startswith(words)
    assert "\n" not in caught.value.message


@pytest.mark.process
def test_a_load_that_may_succeed_later_says_so(load):
    with pytest.raises(StatusError) as caught:
        load("class PythonModel:\n  def load(self, directory): raise ConnectionError('refused')")
    assert caught.value.code is Code.UNAVAILABLE


@pytest.mark.process
def test_a_client_is_told_in_a_line_whose_fault_it_was(faulty):
    assert failure(faulty("refuse")) == (Code.INVALID_ARGUMENT, "no such city")
    assert failure(faulty("fail")) == (Code.INTERNAL, "KeyError: 3")
    assert failure(faulty("leave")) == (Code.INTERNAL, "SystemExit: 3")
    assert failure(faulty("wrong"))[0] is Code.INTERNAL
    assert faulty("double").result(20)["y"].tolist() == [2, 2]


@pytest.mark.process
def test_the_traceback_is_in_the_log_once_and_begins_with_the_models_own_code(tmp_path, capfd):
    version = write_version(tmp_path / "m" / "1", FAULTY)
    model = ChildRuntime(PYTHON).load(version, RuntimeSettings())
    for _ in range(3):
        with pytest.raises(StatusError):
            model.run(DEFAULT_SIGNATURE, doing("fail"))
    model.close()
    log = capfd.readouterr().err
    assert log.count("Traceback") == 1
    assert log.count("predict failed again: KeyError: 3") == 2
    assert "return {}[3]" in log
    assert "serving/runtimes/python/code.py" not in log


@pytest.mark.process
@pytest.mark.parametrize(
    ("do", "words"), [("exit", "ended with exit code 3"), ("crash", "was killed by SIGSEGV")]
)
def test_the_end_of_the_process_is_unavailable_and_it_comes_back(faulty, do, words):
    assert failure(faulty(do)) == (Code.UNAVAILABLE, f"The process of this model {words}.")
    until(lambda: faulty("double").exception(20) is None)


@pytest.mark.process
def test_a_hang_ends_at_the_time_limit_and_holds_up_nothing_else(load, faulty):
    other = load(DOUBLER, {"factor.txt": "2"}, 2)
    hung = [faulty("hang") for _ in range(2)]
    pair = {"x": np.ones((1, 2), np.float32)}
    for _ in range(5):
        other.run(DEFAULT_SIGNATURE, pair)
    # Two of its four threads hang; the others answer.
    assert faulty("double").result(20)["y"].tolist() == [2, 2]
    for each in hung:
        code, message = failure(each)
        # The first one ends the process, in which the other is in progress.
        assert code in {Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE}
        assert message.endswith("was killed because a request took longer than 2 s.")
    until(lambda: faulty("double").exception(20) is None)
    assert other.restarts == 0


@pytest.mark.process
def test_what_it_leaks_comes_back_when_it_is_unloaded(tmp_path):
    version = write_version(tmp_path / "m" / "1", FAULTY)
    model = ChildRuntime(PYTHON).load(version, RuntimeSettings())
    model.run(DEFAULT_SIGNATURE, doing("leak"))
    process = psutil.Process(model.pid)
    assert process.memory_info().rss > 100_000_000
    model.close()
    assert not process.is_running()
