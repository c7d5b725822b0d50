"""Validate a request's inputs and outputs against a signature. Pure.

TensorFlow Serving leaves shapes to the kernels. Some kernels do not check them: a convolution given
rank 1 aborts the process. So inputs whose shapes the model's graph does not take never reach a
runtime. Messages about names are TensorFlow Serving's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from timonel.serving.signature import (
    CLASSIFY,
    DTYPE_NAMES,
    NUMPY_TYPES,
    PREDICT,
    REGRESS,
    Array,
    Signature,
    TensorSpec,
    fits,
)
from timonel.serving.status import Code, StatusError, invalid_argument

MAX_RANK = 8
"""Maximum rank of inputs without declared rank; most kernels accept no more."""
_MAX_EMPTY = 1 << 24
"""Largest product of an empty array's other sizes: a sum of ``[n, 0]`` has n values."""
_COLUMN = (-1, 1)
_HANDLES = frozenset({"DT_RESOURCE", "DT_VARIANT"})
_KINDS = {"coo_sparse": "sparse", "composite_tensor": "composite"}
_METHODS = (PREDICT, CLASSIFY, REGRESS)


def checked_run(
    signature: Signature, inputs: Mapping[str, Array], output_filter: Sequence[str]
) -> tuple[Mapping[str, Array], list[str], tuple[int, ...] | None]:
    """Return the inputs to compute with, the requested outputs, and the shape for `drop_column`."""
    complete = complete_inputs(signature, inputs)
    shaped = check_shapes(signature, complete)
    outputs = chosen_outputs(signature, output_filter)
    check_encodings(signature, outputs)
    if shaped is complete:
        return shaped, outputs, None
    column = next(each.shape for name, each in complete.items() if each is not shaped[name])
    return shaped, outputs, column


def chosen_outputs(signature: Signature, output_filter: Sequence[str]) -> list[str]:
    """Return the names of the requested outputs; all if none is named."""
    if not output_filter:
        return list(signature.outputs)
    chosen: list[str] = []
    for alias in output_filter:
        if alias not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias} "
                f"Outputs expected to be in the set {{{_names(signature.outputs)}}}."
            )
        if alias in chosen:
            raise invalid_argument(f"duplicate output tensor alias: {alias}")
        chosen.append(alias)
    return chosen


def check_encodings(signature: Signature, outputs: Sequence[str]) -> None:
    """Refuse to compute what requests and responses cannot carry: sparse and ragged tensors."""
    for name, spec in signature.inputs.items():
        if spec.encoding != "name" or spec.dtype in _HANDLES:
            raise _no_dense("Input", name, spec, signature)
    for name in outputs:
        spec = signature.outputs[name]
        if spec.encoding != "name" or spec.dtype in _HANDLES:
            raise _no_dense("Output", name, spec, signature)


def _no_dense(what: str, name: str, spec: TensorSpec, signature: Signature) -> StatusError:
    kind = _KINDS.get(spec.encoding) or spec.dtype.removeprefix("DT_").lower()
    return invalid_argument(
        f"{what} {name} of signature {signature.name} is a {kind} tensor, which requests and "
        "responses cannot carry"
    )


def complete_inputs(signature: Signature, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return a request's inputs, with defaults for those left out."""
    if inputs.keys() == signature.inputs.keys():
        return inputs
    check_inputs(signature, inputs.keys())
    defaults = signature.defaults
    return {name: inputs[name] if name in inputs else defaults[name] for name in signature.inputs}


def check_inputs(signature: Signature, given: AbstractSet[str]) -> None:
    """Validate the names of a request's inputs; those with defaults are optional."""
    expected, defaults = signature.inputs, signature.defaults
    missing, extra = expected.keys() - given, given - expected.keys()
    if len(given) > len(expected) or (len(given) < len(expected) and not defaults):
        raise invalid_argument(
            f"input size does not match signature: {len(given)}!={len(expected)} "
            f"len({{{_names(given)}}}) != len({{{_names(expected)}}}). "
            f"Sent extra: {{{_names(extra)}}}. Missing but required: {{{_names(missing)}}}."
        )
    for alias in sorted(missing - defaults.keys()):
        raise invalid_argument(
            f"Signature input alias: {alias}(feed name: {expected[alias].tensor}) not found in "
            "request and no default value provided. Inputs expected to be in the request "
            f"{{{_names(given)}}}, or default input alias set: {_names(defaults)}"
        )
    if extra:
        used = _names(given & expected.keys())
        raise invalid_argument(
            f"Inputs contains invalid name. Used request inputs: {used}, "
            f"request input: {_names(given)}"
        )


def check_method(signature: Signature) -> None:
    """Validate that a signature may be used for Predict, judging by its method name."""
    if signature.method_name not in _METHODS:
        raise StatusError(
            Code.INTERNAL,
            "Expected prediction signature method_name to be one of "
            f"{{{', '.join(_METHODS)}}}. Was: {signature.method_name}",
        )


def check_shapes(signature: Signature, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Validate types and shapes, and add a missing dimension of size 1.

    TensorFlow Serving's tutorials send ``[n]`` to an input declared ``[-1, 1]``. Such an array
    becomes ``[n, 1]``; `drop_column` removes the added dimension from the outputs.

    Returns:
        ``inputs`` itself, or a new mapping if an array was reshaped.
    """
    reshaped: dict[str, Array] = {}
    for name, array in inputs.items():
        spec = signature.inputs[name]
        if array.dtype != NUMPY_TYPES.get(spec.dtype, array.dtype):
            raise invalid_argument(
                f"Input {name} has the wrong type: expected {spec.dtype}, "
                f"got {DTYPE_NAMES.get(array.dtype, array.dtype)}"
            )
        if not array.size and math.prod(filter(None, array.shape)) > _MAX_EMPTY:
            raise invalid_argument(
                f"Input {name} has no values, but sizes that are too large: {_list(array.shape)}"
            )
        declared = spec.shape
        if fits(declared, array.shape) and (declared is not None or array.ndim <= MAX_RANK):
            continue
        if declared != _COLUMN or array.ndim > 1:
            expected = (
                f"rank {MAX_RANK} at most" if declared is None else f"shape {_list(declared)}"
            )
            raise invalid_argument(
                f"Input {name} has the wrong shape: expected {expected}, got {_list(array.shape)}"
            )
        reshaped[name] = array.reshape(-1, 1)
    return {**inputs, **reshaped} if reshaped else inputs


def drop_column(outputs: Mapping[str, Array], shape: tuple[int, ...]) -> dict[str, Array]:
    """Undo `check_shapes`: reshape outputs ``[n, 1]`` to the client's shape, ``[n]`` or ``[]``."""
    rows = shape[0] if shape else 1
    return {
        name: array.reshape(shape) if array.shape == (rows, 1) else array
        for name, array in outputs.items()
    }


def _list(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _names(names: Iterable[str]) -> str:
    return ",".join(sorted(names))
