"""A runtime without TensorFlow whose versions can be torn, fail, and echo every type."""

from __future__ import annotations

import dataclasses
import select
import time

import numpy as np

from tests.serving.runtimes.faults import FaultyModel
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.signature import CLASSIFY, NUMPY_TYPES, REGRESS, STRING, Signature, TensorSpec
from timonel.serving.status import Code, StatusError, invalid_argument

NAME = "hard"
FAULTY = "faulty"
"""A file of a version that offers the signature ``do``, which crashes and hangs when asked to."""
SLOW_LOAD = "slow"
"""A file of a version that takes as many seconds to load as it says."""


def _signature(name, inputs, outputs, method="tensorflow/serving/predict"):
    return Signature(
        name,
        inputs={key: TensorSpec(f"{key}:0", *spec) for key, spec in inputs.items()},
        outputs={key: TensorSpec(f"{key}:0", *spec) for key, spec in outputs.items()},
        method_name=method,
    )


ROWS = (-1,)
EXAMPLES = {"inputs": (STRING, ROWS)}
SIGNATURES = {
    each.name: each
    for each in (
        _signature("serving_default", {"x": ("DT_FLOAT", ROWS)}, {"y": ("DT_FLOAT", ROWS)}),
        _signature(
            "two",
            {"a": ("DT_FLOAT", (-1, 2)), "b": (STRING, ROWS)},
            {"sum": ("DT_FLOAT", ROWS), "b_bytes": (STRING, ROWS)},
        ),
        _signature(
            "classes",
            EXAMPLES,
            {"classes": (STRING, (-1, 2)), "scores": ("DT_FLOAT", (-1, 2))},
            CLASSIFY,
        ),
        _signature("value", EXAMPLES, {"outputs": ("DT_FLOAT", ROWS)}, REGRESS),
        *(
            _signature(f"echo_{dtype}", {"x": (dtype, None)}, {"x": (dtype, None)})
            for dtype in NUMPY_TYPES
        ),
    )
}


class _Faults(FaultyModel):
    def sleep(self, x):
        # As libfaketime, which sets the clock in some tests, breaks `time.sleep`.
        select.select([], [], [], float(x.flat[0]))
        return x


class HardModel(LoadedModel):
    """Multiplies by its factor, and echoes; refuses types and shapes as TensorFlow would."""

    def __init__(self, path, factor):
        self._factor = np.float32(factor)
        self._faults = _Faults(path) if (path / FAULTY).exists() else None
        self.signatures = dict(SIGNATURES)
        if self._faults is not None:
            default = self._faults.signatures["serving_default"]
            self.signatures["do"] = dataclasses.replace(default, name="do")

    def run(self, signature, inputs, outputs=None):
        if signature == "do":
            return self._faults.run("serving_default", inputs, outputs)
        for name, spec in self.signatures[signature].inputs.items():
            _check(name, spec, inputs[name])
        values = self._values(signature, inputs)
        return {name: values[name] for name in outputs or values}

    def _values(self, signature, inputs):
        if signature == "serving_default":
            return {"y": inputs["x"] * self._factor}
        if signature == "two":
            if len(inputs["a"]) != len(inputs["b"]):
                raise invalid_argument(f"{len(inputs['a'])} rows and {len(inputs['b'])}")
            return {"sum": inputs["a"].sum(axis=1), "b_bytes": inputs["b"]}
        if signature.startswith("echo_"):
            return {"x": inputs["x"]}
        lengths = [len(example) for example in inputs["inputs"]]
        if any(length > 100_000 for length in lengths):
            raise invalid_argument("the example is too long")
        return {
            "classes": np.array([[b"short", b"long"]] * len(lengths), object).reshape(-1, 2),
            "scores": np.array([[1, n] for n in lengths], np.float32).reshape(-1, 2),
            "outputs": np.array(lengths, np.float32),
        }

    def close(self):
        pass


def _check(name, spec, array):
    wanted = NUMPY_TYPES[spec.dtype]
    if array.dtype != wanted:
        raise invalid_argument(f"Expected input {name} of {wanted}, got {array.dtype}")
    if spec.shape is None:
        return
    fits = array.ndim == len(spec.shape) and all(
        want in {-1, got} for want, got in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise invalid_argument(f"Expected input {name} of shape {spec.shape}, got {array.shape}")


class HardRuntime(Runtime):
    """Reads a factor from ``saved_model.pb``, and how many bytes the other file must have.

    ``2.5 1000`` needs ``variables/data`` of 1000 bytes; with fewer the version is damaged, as a
    half-written SavedModel is.
    """

    name = NAME

    def load(self, path, settings):
        try:
            factor, size = (path / "saved_model.pb").read_text().split()
            found = (path / "variables" / "data").stat().st_size
            if found != int(size):
                raise StatusError(Code.DATA_LOSS, f"{found} bytes of {size} in {path}")
            model = HardModel(path, float(factor))
        except FileNotFoundError as error:
            raise StatusError(Code.NOT_FOUND, f"no model in {path}") from error
        except (ValueError, NotADirectoryError) as error:
            raise StatusError(Code.DATA_LOSS, f"damaged model in {path}") from error
        if (path / SLOW_LOAD).exists():
            time.sleep(float((path / SLOW_LOAD).read_text()))
        return model
