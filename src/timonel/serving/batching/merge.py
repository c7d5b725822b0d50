"""Merge rows of several requests into one batch, and split its outputs. Pure.

A batch of one request is not copied, one of several is copied once. Each request's outputs are
views of the batch's outputs. Error messages are TensorFlow Serving's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from timonel.serving.signature import DTYPE_NAMES, Array
from timonel.serving.status import Code, StatusError, invalid_argument

_MAX_PADDED_RANK = 6


def rows_of(inputs: Mapping[str, Array]) -> int:
    """Return the common size of the first dimension."""
    if not inputs:
        raise invalid_argument("Batching Run() must have at least one input tensor")
    rows: int | None = None
    for array in inputs.values():
        if array.ndim == 0:
            raise invalid_argument("Batching Run() input tensors must have at least one dimension")
        if rows is not None and len(array) != rows:
            raise invalid_argument(
                "Batching Run() input tensors must have equal 0th-dimension size"
            )
        rows = len(array)
    return rows or 0


def padded_size(rows: int, allowed: Sequence[int]) -> int:
    """Return the smallest allowed size that holds ``rows``; ``rows`` if none does."""
    return next((size for size in allowed if size >= rows), rows)


def merge(
    parts: Sequence[Mapping[str, Array]],
    padding: int = 0,
    *,
    pad_shapes: bool = False,
    tensors: Mapping[str, str] | None = None,
) -> Mapping[str, Array]:
    """Concatenate the rows of ``parts``.

    Args:
        parts: The inputs of each request by name, with the same names in each.
        padding: Number of copies of the last part's first row to append.
        pad_shapes: Whether to pad arrays of different shapes to the largest, with each array's
            first value; otherwise they are rejected.
        tensors: Tensor names by input, for error messages.
    """
    if len(parts) == 1 and not (padding and len(next(iter(parts[0].values())))):
        return parts[0]
    merged = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        if any(array.shape[1:] != arrays[0].shape[1:] for array in arrays):
            if not pad_shapes or any(array.ndim != arrays[0].ndim for array in arrays):
                raise _different_shapes((tensors or {}).get(name, name))
            merged[name] = _padded(_same_type(arrays), padding)
            continue
        if padding and len(arrays[-1]):
            # A view without a copy: all rows share the same memory.
            shape = (padding, *arrays[-1].shape[1:])
            arrays.append(np.broadcast_to(arrays[-1][:1], shape))
        merged[name] = np.concatenate(_same_type(arrays))
    return merged


def check_outputs(outputs: Mapping[str, Array], rows: int) -> None:
    """Reject outputs that cannot be divided among ``rows`` rows."""
    for array in outputs.values():
        if array.ndim == 0:
            raise StatusError(Code.FAILED_PRECONDITION, "Batched output tensor has 0 dimensions")
        if len(array) != rows:
            raise StatusError(
                Code.FAILED_PRECONDITION,
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension "
                "sizes of the input tensors",
            )


def split(
    outputs: Mapping[str, Array], sizes: Sequence[int], *, whole: bool
) -> list[dict[str, Array]]:
    """Return each request's rows of outputs that passed `check_outputs`, as views.

    ``whole`` means that the only request has all rows.
    """
    if whole:
        return [dict(outputs)]
    parts = []
    start = 0
    for size in sizes:
        parts.append({name: array[start : start + size] for name, array in outputs.items()})
        start += size
    return parts


def _same_type(arrays: list[Array]) -> list[Array]:
    first = arrays[0].dtype
    for array in arrays:
        if array.dtype != first:
            raise StatusError(
                Code.INTERNAL,
                "Tensor concat operation failed: INVALID_ARGUMENT: Cannot concatenate tensors that "
                f"have different data types. Got {_type(first)} and {_type(array.dtype)}.",
            )
    return arrays


def _type(dtype: np.dtype[np.generic]) -> str:
    return DTYPE_NAMES.get(dtype, f"DT_{dtype.name}").removeprefix("DT_").lower()


def _different_shapes(tensor: str) -> StatusError:
    # The missing spaces are TensorFlow Serving's.
    return StatusError(
        Code.FAILED_PRECONDITION,
        f"Tensors with name '{tensor}' from different tasks have different shapes and padding is "
        "turned off.Set pad_variable_length_inputs to true, or ensure that all tensors with the "
        "same namehave equal dimensions starting with the first dim.",
    )


def _padded(arrays: list[Array], padding: int) -> Array:
    rank = arrays[0].ndim
    if rank > _MAX_PADDED_RANK:
        raise invalid_argument("Only tensors with rank from 1 to 6 can be padded.")
    shape = tuple(max(array.shape[axis] for array in arrays) for axis in range(1, rank))
    padding = padding if len(arrays[-1]) else 0
    merged = np.empty((sum(map(len, arrays)) + padding, *shape), arrays[0].dtype)
    start = 0
    for array in arrays:
        part = merged[start : start + len(array)]
        if array.size == 0 and part.size:
            raise invalid_argument("Got empty tensor in batch of non-empty tensors.")
        if math.prod(array.shape) != part.size:
            part[...] = array.flat[0]
        part[tuple(slice(size) for size in array.shape)] = array
        start += len(array)
    if padding:
        merged[start:] = merged[start - len(arrays[-1])]
    return merged
