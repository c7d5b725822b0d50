"""Model signatures, their tensors and data types.

Strings are object arrays of ``bytes``. Data types have the names of TensorFlow's protos.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DEFAULT_SIGNATURE = "serving_default"
INIT_OP = "__saved_model_init_op"
"""Initialization signature of TensorFlow 2 exports; not for clients.

It is listed among the signatures, initializes the model's variables and has no outputs.
"""
PREDICT = "tensorflow/serving/predict"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
"""Method names of signatures."""
STRING = "DT_STRING"

_SAME_NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"
NUMPY_TYPES: Mapping[str, np.dtype[Any]] = {
    "DT_FLOAT": np.dtype(np.float32),
    "DT_DOUBLE": np.dtype(np.float64),
    "DT_HALF": np.dtype(np.float16),
    "DT_BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    **{f"DT_{name.upper()}": np.dtype(name) for name in _SAME_NAMES.split()},
    STRING: np.dtype(object),
}
"""NumPy type of each data type that requests and responses can contain."""

DTYPE_NAMES: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_TYPES.items()}


def string_array(values: Sequence[bytes]) -> Array:
    """Return strings as an array [n]."""
    # `np.array` would make an array of fixed-width bytes, which drops trailing zeros.
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def narrowed(numbers: Array, target: np.dtype[Any]) -> Array:
    """Convert numbers to a type; `OverflowError` with a number beyond its range."""
    with np.errstate(over="ignore"):
        result = numbers.astype(target, copy=False)
    if not numbers.size or np.can_cast(numbers.dtype, target):
        return result
    unfit: Sequence[Any] | Array
    if target.kind in "biu":
        low, high = (0, 1) if target == np.bool_ else (np.iinfo(target).min, np.iinfo(target).max)
        ends = int(numbers.min()), int(numbers.max())
        unfit = [each for each in ends if not low <= each <= high]
    else:
        unfit = numbers[np.isinf(result) & np.isfinite(numbers)]
    if len(unfit):
        raise OverflowError(unfit[0])
    return result


def bytes_of(array: Array) -> int:
    """Return the size of an array's values in bytes, including strings."""
    if array.dtype != object:
        return array.nbytes
    return sum(map(len, array.reshape(-1).tolist()))


_DISPLAY = {"DT_BOOL": "bool", "DT_BFLOAT16": "bfloat16", STRING: "string"}


def display_name(dtype: str) -> str:
    """Return TensorFlow's name of a data type, such as ``float``."""
    return _DISPLAY.get(dtype, dtype.removeprefix("DT_").lower())


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a signature.

    Args:
        tensor: The tensor's name inside the model; empty if it has another encoding.
        dtype: The data type's proto name, such as ``DT_FLOAT``.
        shape: The declared sizes, -1 for any size; None for an unknown rank.
        encoding: ``name`` for one dense tensor, else ``coo_sparse`` or ``composite_tensor``, as in
            the proto ``TensorInfo``. Requests and responses can carry dense tensors only.
        parts: Names of the tensors of another encoding: of a sparse tensor, its values, indices and
            dense shape.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...] | None = None
    encoding: str = "name"
    parts: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Data type and shape, such as ``float [?, 28, 28]``."""
        if self.shape is None:
            return f"{display_name(self.dtype)} of any shape"
        sizes = ", ".join("?" if size < 0 else str(size) for size in self.shape)
        return f"{display_name(self.dtype)} [{sizes}]"


@dataclass(frozen=True)
class Signature:
    """A callable signature of a model."""

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    method_name: str = ""
    defaults: Mapping[str, Array] = field(default_factory=dict)


@functools.lru_cache(4096)
def fits(declared: tuple[int, ...] | None, shape: tuple[int, ...]) -> bool:
    """Return whether a shape has the declared rank and known dimensions, if any."""
    return declared is None or (
        len(shape) == len(declared)
        and all(known in {-1, size} for known, size in zip(declared, shape, strict=True))
    )
