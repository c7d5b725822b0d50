"""Hooks around a model: where they run, what they may do, and what becomes of what they raise."""

from __future__ import annotations

import textwrap
import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest

from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.python import hooks as module
from timonel.serving.runtimes.python.hooks import HookedModel, Hooks
from timonel.serving.runtimes.threaded import scheduled
from timonel.serving.signature import DEFAULT_SIGNATURE, Signature, TensorSpec
from timonel.serving.status import Code, StatusError


class Doubler(LoadedModel):
    """Doubles ``x``; waits for `may_run` first."""

    def __init__(self):
        self.may_run = threading.Event()
        self.may_run.set()
        self.asked = []
        self.is_closed = False
        spec = TensorSpec("x:0", "DT_FLOAT", (-1,))
        self.signatures = {
            name: Signature(name, {"x": spec}, {"y": spec, "z": spec}, "tensorflow/serving/predict")
            for name in (DEFAULT_SIGNATURE, "raw")
        }

    def run(self, signature, inputs, outputs=None):
        assert not self.is_closed
        assert self.may_run.wait(20)
        self.asked.append(outputs)
        if inputs["x"].size == 0:
            raise StatusError(Code.INVALID_ARGUMENT, "nothing to double")
        found = {"y": 2 * inputs["x"], "z": inputs["x"]}
        return {name: found[name] for name in outputs or found}

    def close(self):
        self.is_closed = True


@pytest.fixture
def inner():
    return Doubler()


@pytest.fixture
def hook(inner, tmp_path, monkeypatch):
    """Put hooks of this code around the model."""
    made = []
    # What hooks do to their process for good is undone here.
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)

    def do(code, threads=2):
        file = tmp_path / "hooks.py"
        file.write_text(textwrap.dedent(code))
        made.append(HookedModel(scheduled(inner), Hooks(file, inner.signatures), threads))
        return made[-1]

    yield do
    inner.may_run.set()
    for model in made:
        model.close()


def x(*values):
    return {"x": np.array(values, np.float32)}


def failure(future):
    error = future.exception(20)
    assert isinstance(error, StatusError)
    return error.code, error.message


TEXTS = """
    import numpy as np

    inputs = {"text": ("string", [None])}
    outputs = {"length": ("int64", [None]), "kind": ("string", [None])}

    def preprocess(inputs):
        if b"" in inputs["text"]:
            raise ValueError("expected no empty text")
        return {"x": np.array([len(text) for text in inputs["text"]])}

    def postprocess(outputs):
        return {"length": outputs["y"].astype(int), "kind": ["even"] * len(outputs["y"])}
"""


def test_a_client_sees_what_the_hooks_take_and_give(hook, inner):
    model = hook(TEXTS)
    seen = model.signatures[DEFAULT_SIGNATURE]
    assert {n: (s.dtype, s.shape) for n, s in seen.inputs.items()} == {"text": ("DT_STRING", (-1,))}
    assert list(seen.outputs) == ["length", "kind"]
    assert seen.method_name == "tensorflow/serving/predict"
    answer = model.run(DEFAULT_SIGNATURE, {"text": np.array([b"abc", b"d"], object)})
    assert answer["length"].tolist() == [6, 2]
    assert answer["length"].dtype == np.int64
    assert answer["kind"].tolist() == [b"even", b"even"]


def test_only_the_outputs_asked_for_are_given_and_the_hook_sees_all_of_the_models(hook, inner):
    model = hook("def postprocess(outputs): return {'y': outputs['y'] + outputs['z'], 'z': 0.0}")
    with pytest.raises(StatusError, match="expected z of postprocess to be float32"):
        model.run(DEFAULT_SIGNATURE, x(1), ["y"])
    model = hook("def postprocess(outputs): return {**outputs, 'y': outputs['y'] + outputs['z']}")
    assert model.run(DEFAULT_SIGNATURE, x(1), ["y"]) == {"y": 3}
    assert inner.asked == [None, None]


def test_without_postprocess_the_model_computes_what_is_asked_for(hook, inner):
    model = hook("def preprocess(inputs): return {'x': inputs['x'] + 1}")
    assert model.run(DEFAULT_SIGNATURE, x(1), ["y"]) == {"y": 4}
    assert inner.asked == [["y"]]


def test_other_signatures_are_left_alone_and_another_may_be_named(hook):
    model = hook("signature = 'raw'\ndef preprocess(inputs): return {'x': inputs['x'] + 1}")
    assert model.run("raw", x(1), ["y"]) == {"y": 4}
    assert model.run(DEFAULT_SIGNATURE, x(1), ["y"]) == {"y": 2}


def test_hooks_may_work_in_place(hook):
    given = x(1, 2)
    model = hook("def preprocess(inputs):\n  inputs['x'] *= 3\n  return inputs\n")
    assert model.run(DEFAULT_SIGNATURE, given, ["y"])["y"].tolist() == [6, 12]
    assert given["x"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "hooks.py defines neither preprocess nor postprocess"),
        ("preprocess = 3", "preprocess in hooks.py must be a function, got 3"),
        (
            "signature = 'no'\ndef preprocess(i): pass",
            "the model lacks; it has raw, serving_default",
        ),
        (
            "inputs = {'a': ('int8', [])}\ndef postprocess(o): pass",
            "hooks.py declares inputs, but",
        ),
        (
            "outputs = {'a': ('int8', [])}\ndef preprocess(i): pass",
            "hooks.py declares outputs, but",
        ),
        ("inputs = 3\ndef preprocess(i): pass", "declare the inputs of hooks.py as in"),
        ("threads = 0\ndef preprocess(i): pass", "threads in hooks.py must be 1 or more"),
        ("1 / 0", "importing hooks.py failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_without_fitting_hooks_is_refused(hook, code, words):
    with pytest.raises(StatusError) as caught:
        hook(code)
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert words in caught.value.message


@pytest.mark.parametrize("where", ["preprocess", "postprocess"])
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("ValueError('expected a cat\\nor so')", (Code.INVALID_ARGUMENT, "expected a cat")),
        ("KeyError('cat')", (Code.INTERNAL, "KeyError: 'cat'")),
        ("SystemExit(3)", (Code.INTERNAL, "SystemExit: 3")),
        ("ValueError", (Code.INVALID_ARGUMENT, "ValueError")),
    ],
)
def test_what_a_hook_raises_is_the_clients_fault_only_if_it_says_so(hook, where, raised, expected):
    model = hook(f"def {where}(arrays): raise {raised}")
    assert failure(model.submit(DEFAULT_SIGNATURE, x(1))) == expected


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("None", "expected preprocess to return a dict of arrays, got NoneType"),
        ("{'q': 1.0}", "preprocess returned q instead of x"),
        ("{'x': 'a'}", "expected x of preprocess to be float32 [?], got string []"),
    ],
)
def test_what_is_no_input_of_the_model_is_the_hooks_own_failure(hook, returned, words):
    model = hook(f"def preprocess(inputs): return {returned}")
    assert failure(model.submit(DEFAULT_SIGNATURE, x(1))) == (Code.INTERNAL, words)


def test_what_a_client_sends_is_held_against_what_the_hooks_declare(hook):
    model = hook(TEXTS)
    code, message = failure(model.submit(DEFAULT_SIGNATURE, {"text": np.array([["a"]], object)}))
    assert code is Code.INVALID_ARGUMENT
    assert message == "expected text to be string [?], got string [1, 1]"


def test_what_the_model_refuses_reaches_the_client_unchanged(hook):
    model = hook("def preprocess(i): return i\ndef postprocess(o): return o")
    refused = (Code.INVALID_ARGUMENT, "nothing to double")
    assert failure(model.submit(DEFAULT_SIGNATURE, x())) == refused


SLOW = """
    import time

    def preprocess(inputs):
        time.sleep(float(inputs["x"][0]))
        return inputs
"""


def test_a_slow_hook_holds_up_its_own_request_only(hook):
    model = hook(SLOW)
    slow = model.submit(DEFAULT_SIGNATURE, x(0.5))
    for _ in range(10):
        model.run(DEFAULT_SIGNATURE, x(0))
    assert not slow.done()
    assert slow.result(20)["y"].tolist() == [1]


def test_a_request_whose_time_is_over_is_not_computed(hook, inner):
    model = hook(SLOW)
    late = model.submit(DEFAULT_SIGNATURE, x(0.1), None, time.monotonic() + 0.05)
    assert failure(late)[0] is Code.DEADLINE_EXCEEDED
    assert not inner.asked


def test_a_request_that_is_given_up_goes_no_further(hook, inner):
    model = hook(SLOW + "\n    threads = 1\n")
    first, second = (model.submit(DEFAULT_SIGNATURE, x(seconds)) for seconds in (0.2, 30))
    assert second.cancel()
    assert first.result(20)["y"].tolist() == [np.float32(0.4)]
    assert len(inner.asked) == 1
    inner.may_run.clear()
    waiting = [model.submit(DEFAULT_SIGNATURE, x(0)) for _ in range(4)]
    time.sleep(0.1)
    assert all(future.cancel() for future in waiting)
    inner.may_run.set()
    model.run(DEFAULT_SIGNATURE, x(0))
    assert len(inner.asked) < 6


def test_beyond_a_limit_requests_are_refused_at_once(hook, inner, monkeypatch):
    monkeypatch.setattr(module, "_MAX_PENDING", 3)
    model = hook("def preprocess(inputs): return inputs")
    inner.may_run.clear()
    asked = [model.submit(DEFAULT_SIGNATURE, x(1)) for _ in range(4)]
    assert failure(asked.pop())[0] is Code.UNAVAILABLE
    inner.may_run.set()
    wait(asked, 20)
    assert model.submit(DEFAULT_SIGNATURE, x(1)).result(20)["y"] == 2


def test_closing_answers_what_is_under_way(hook, inner, tmp_path):
    file = tmp_path / "hooks.py"
    file.write_text(textwrap.dedent(SLOW) + "\ndef postprocess(outputs): return outputs\n")
    model = HookedModel(scheduled(inner), Hooks(file, inner.signatures), 2)
    asked = [model.submit(DEFAULT_SIGNATURE, x(0.05)) for _ in range(6)]
    given_up = model.submit(DEFAULT_SIGNATURE, x(0.1))
    given_up.cancel()
    model.close()
    assert all(future.result(0)["y"] == np.float32(0.1) for future in asked)
    assert inner.is_closed


def test_closing_does_not_wait_for_what_is_given_up_meanwhile(hook, inner, tmp_path):
    file = tmp_path / "hooks.py"
    file.write_text(textwrap.dedent(SLOW))
    model = HookedModel(scheduled(inner), Hooks(file, inner.signatures), 1)
    asked = [model.submit(DEFAULT_SIGNATURE, x(0.3)) for _ in range(3)]
    closing = threading.Thread(target=model.close)
    closing.start()
    time.sleep(0.05)
    assert all(future.cancel() for future in asked[1:])
    closing.join(20)
    assert not closing.is_alive()
    assert asked[0].result(0)["y"] == np.float32(0.6)


def test_the_log_has_the_traceback_once(hook, caplog):
    model = hook("def preprocess(inputs): return inputs['no']")
    for _ in range(3):
        failure(model.submit(DEFAULT_SIGNATURE, x(1)))
    assert [record.message.partition("\n")[0] for record in caplog.records] == [
        "preprocess failed",
        "preprocess failed again: KeyError: 'no'",
        "preprocess failed again: KeyError: 'no'",
    ]
