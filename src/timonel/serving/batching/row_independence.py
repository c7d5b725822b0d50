"""Test whether rows of different requests may be computed together.

A signature may be batched if its inputs and outputs are declared with an open first dimension, and
one of three rows gives the same result in the batch as alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

import numpy as np

from timonel.serving.runtimes.base import DeclaringModel, LoadedModel
from timonel.serving.signature import NUMPY_TYPES, STRING, Array, Signature, TensorSpec
from timonel.serving.status import StatusError

_LOG = logging.getLogger(__name__)
_ROWS = 3
_ALONE = 0
"""Index of the row that is also computed alone."""
_FLOATS = (0.25, 0.0, 1.0)
"""Distinct values, without their average, to detect means over the batch."""
_OPEN_SIZES = (1, 8, 32)
"""Sizes to try for open dimensions other than the first."""

Execution = Callable[[str, Mapping[str, Array]], Mapping[str, Array]]


class Independence(Enum):
    """Result of the test."""

    INDEPENDENT = "independent"
    DEPENDENT = "dependent"
    UNKNOWN = "unknown"


def prove_independence(
    model: LoadedModel, signature: Signature, sample: Mapping[str, Array] | None = None
) -> Independence:
    """Decide whether a signature may be batched, by declaration or test.

    Args:
        model: The model; runs the signature unless it declares whether it is batchable.
        signature: One of its signatures.
        sample: Inputs known to be valid, such as those of a warm-up request; generated if None.

    Returns:
        `UNKNOWN` if the model accepts none of the inputs tried.
    """
    if not is_open(signature):
        return Independence.DEPENDENT
    if isinstance(model, DeclaringModel):
        return Independence.INDEPENDENT if model.batchable else Independence.DEPENDENT
    tries = _made_up(signature) if sample is None else iter([three_rows(sample)])
    for inputs in tries:
        found = _try(model.run, signature, inputs)
        if found is not Independence.UNKNOWN:
            return found
    return Independence.UNKNOWN


def is_open(signature: Signature) -> bool:
    """Return whether all inputs and outputs have an open first dimension."""
    specs = [*signature.inputs.values(), *signature.outputs.values()]
    return bool(signature.inputs) and all(
        spec.shape is not None and spec.shape[:1] == (-1,) for spec in specs
    )


def three_rows(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the first three rows, or the first row three times."""
    return {
        name: array[:_ROWS] if len(array) >= _ROWS else np.repeat(array[:1], _ROWS, axis=0)
        for name, array in inputs.items()
    }


def _try(run: Execution, signature: Signature, inputs: Mapping[str, Array]) -> Independence:
    single = {name: array[_ALONE : _ALONE + 1] for name, array in inputs.items()}
    try:
        together = run(signature.name, inputs)
        alone = run(signature.name, single)
    except StatusError as error:
        _LOG.debug("signature %s does not take %s: %s", signature.name, inputs, error)
        return Independence.UNKNOWN
    same = all(_is_row(together[name], alone[name]) for name in signature.outputs)
    return Independence.INDEPENDENT if same else Independence.DEPENDENT


def _is_row(together: Array, alone: Array) -> bool:
    if together.shape[:1] != (_ROWS,) or alone.shape[:1] != (1,):
        return False
    row = together[_ALONE : _ALONE + 1]
    if row.shape != alone.shape:
        return False
    if row.dtype == object or not np.issubdtype(row.dtype, np.floating):
        # Ties, or the last digit of a number in a text, may differ in a larger batch.
        return True
    tolerance = max(1e-3, 10 * float(np.finfo(row.dtype).eps))
    return bool(np.allclose(row, alone, rtol=tolerance, atol=tolerance, equal_nan=True))


def _made_up(signature: Signature) -> Iterator[dict[str, Array]]:
    has_open = any(-1 in (spec.shape or ())[1:] for spec in signature.inputs.values())
    for size in _OPEN_SIZES if has_open else _OPEN_SIZES[:1]:
        yield {name: _values(spec, size) for name, spec in signature.inputs.items()}


def _values(spec: TensorSpec, size: int) -> Array:
    shape = (_ROWS, *(size if each < 0 else each for each in (spec.shape or ())[1:]))
    dtype = NUMPY_TYPES[spec.dtype]
    if spec.dtype == STRING:
        return np.full(shape, b"", dtype=object)
    values = np.zeros(shape, dtype)
    if np.issubdtype(dtype, np.floating):
        for row, value in enumerate(_FLOATS):
            values[row] = value
    return values
