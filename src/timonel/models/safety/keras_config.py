"""Check what the configuration in a file of tf-keras makes it call, before a model is made from it.

tf-keras calls any function that a configuration names, and passes arguments from it. Keras 3 does
so only for its own layers.
"""

from __future__ import annotations

import builtins
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

_MOST_BYTES = 64 << 20
_PACKAGES = frozenset({"keras", "tf_keras", "builtins"})
_INITIALIZERS = "tensorflow.python.ops.init_ops_v2"
_CALLING = frozenset({"Lambda", "ClassMethod", "InstanceMethod", "InstanceProperty"})
"""Layers that call a function or a method whose name is in the configuration."""
_MATHEMATICS = ("math.", "nn.", "linalg.", "image.", "strings.", "signal.", "__operators__.")
"""Parts of TensorFlow's API without access to files, the network or Python code."""
_FUNCTIONS = """
abs add argsort boolean_mask broadcast_to cast clip_by_norm clip_by_value concat cos cumsum
divide einsum equal exp expand_dims eye fill floor gather gather_nd greater greater_equal
identity less less_equal logical_and logical_not logical_or matmul maximum minimum multiply
negative norm not_equal one_hot ones ones_like pad pow range rank reduce_all reduce_any
reduce_max reduce_mean reduce_min reduce_prod reduce_sum repeat reshape reverse roll round shape
sigmoid sign sin size slice sort split sqrt square squeeze stack stop_gradient strided_slice
subtract tanh tensordot tile transpose unstack where zeros zeros_like
"""
"""Those of the API itself."""


def calls_of(file: Path) -> Iterator[str]:
    """Yield what a Keras file would have tf-keras call besides layers and their mathematics."""
    for text in _configurations(file):
        yield from calls_in(_parsed(text))


def calls_in(config: Any) -> Iterator[str]:
    """Yield what a model's configuration would have tf-keras call besides those."""
    waiting = [config]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield from _calls(found)
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _configurations(path: Path) -> Iterator[str | bytes]:
    # One file may be both.
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
            yield file.read(_MOST_BYTES + 1)
    if h5py.is_hdf5(path):
        with h5py.File(path) as file:
            yield file.attrs.get("model_config", "null")


def _parsed(text: str | bytes) -> Any:
    if len(text) > _MOST_BYTES:
        raise ValueError(f"its configuration has more than {_MOST_BYTES >> 20} MiB")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its configuration is nested too deeply") from error


def _calls(found: dict[str, Any]) -> Iterator[str]:
    kind, config, module = found.get("class_name"), found.get("config"), found.get("module")
    package = str(module or "keras").partition(".")[0]
    if package not in _PACKAGES and (module != _INITIALIZERS or kind == "function"):
        yield f"{kind} of the module {module}"
    if kind == "function" and module == "builtins" and hasattr(builtins, str(config)):
        yield f"Python's {config}"
    if kind in _CALLING:
        yield f"the function of a layer {kind}"
    if isinstance(config, dict) and str(kind).endswith("OpLambda"):
        name = str(config.get("function")).removeprefix("compat.v1.")
        if name not in _FUNCTIONS.split() and not name.startswith(_MATHEMATICS):
            yield f"tf.{name}"
