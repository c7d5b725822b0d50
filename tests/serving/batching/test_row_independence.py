from __future__ import annotations

import numpy as np
import pytest

from timonel.serving.batching.row_independence import Independence, prove_independence
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code, StatusError


class Function(LoadedModel):
    """A model of one signature, from a Python function."""

    def __init__(self, function, inputs=None, outputs=None):
        self.function = function
        self.calls = []
        self.signatures = {
            "s": Signature(
                "s",
                inputs=inputs or {"x": TensorSpec("x:0", "DT_FLOAT", (-1, 2))},
                outputs=outputs or {"y": TensorSpec("y:0", "DT_FLOAT", (-1, 2))},
            )
        }

    def run(self, signature, inputs, outputs=None):
        self.calls.append({name: array.shape for name, array in inputs.items()})
        return {"y": self.function(**inputs)}

    def close(self):
        pass


def refuse(**inputs):
    raise StatusError(Code.INVALID_ARGUMENT, "no")


def check(model, sample=None):
    return prove_independence(model, model.signatures["s"], sample)


def test_rows_that_are_computed_alike_may_go_together():
    model = Function(lambda x: 2 * x)
    assert check(model) is Independence.INDEPENDENT
    assert model.calls == [{"x": (3, 2)}, {"x": (1, 2)}]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(axis=0),
        lambda x: np.exp(x) / np.exp(x).sum(axis=0),
        lambda x: x.sum(axis=0),
        lambda x: np.concatenate([x, x]),
        lambda x: np.float32(1),
        lambda x: x[::-1],
    ],
    ids=["centred", "softmax", "sum", "twice", "scalar", "turned"],
)
def test_rows_that_know_of_each_other_stay_apart(function):
    assert check(Function(function)) is Independence.DEPENDENT


def test_a_declared_size_is_believed():
    fixed = {"x": TensorSpec("x:0", "DT_FLOAT", (1, 2))}
    unknown = {"y": TensorSpec("y:0", "DT_FLOAT", None)}
    for model in (
        Function(lambda x: x, inputs=fixed),
        Function(lambda x: x, outputs=unknown),
        Function(lambda x: x, outputs={"y": TensorSpec("y:0", "DT_FLOAT", ())}),
    ):
        assert check(model) is Independence.DEPENDENT
        assert model.calls == []


def test_open_sizes_are_tried():
    def windows(x):
        if x.shape[1] < 8:
            refuse()
        return x.mean(axis=1, keepdims=True)

    model = Function(windows, inputs={"x": TensorSpec("x:0", "DT_FLOAT", (-1, -1))})
    assert check(model) is Independence.INDEPENDENT
    assert model.calls[0] == {"x": (3, 1)}


def test_what_takes_no_made_up_input_needs_a_real_one():
    def length(x):
        if not all(x):
            refuse()
        return np.array([len(each) for each in x])

    model = Function(
        length,
        inputs={"x": TensorSpec("x:0", "DT_STRING", (-1,))},
        outputs={"y": TensorSpec("y:0", "DT_INT64", (-1,))},
    )
    assert check(model) is Independence.UNKNOWN
    assert check(model, {"x": np.array([b"one"], dtype=object)}) is Independence.INDEPENDENT


@pytest.mark.parametrize("dtype", ["DT_HALF", "DT_BFLOAT16", "DT_INT32", "DT_BOOL", "DT_COMPLEX64"])
def test_every_type_can_be_made_up(dtype):
    model = Function(
        lambda x: x,
        inputs={"x": TensorSpec("x:0", dtype, (-1,))},
        outputs={"y": TensorSpec("y:0", dtype, (-1,))},
    )
    assert check(model) is Independence.INDEPENDENT
