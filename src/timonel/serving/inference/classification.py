"""Classify, Regress and MultiInference on serialized tf.train.Examples.

Pure: each request becomes a `PreparedRun`, which the caller runs. gRPC and REST share this module.
Messages are TensorFlow Serving's, as clients match on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from timonel.serving.inference.flow import Call, SignatureRun
from timonel.serving.signature import (
    CLASSIFY,
    DEFAULT_SIGNATURE,
    DTYPE_NAMES,
    REGRESS,
    Array,
    Signature,
    string_array,
)
from timonel.serving.status import Code, StatusError, invalid_argument

MAX_CONTEXT_BYTES = 2**28
"""Size limit of all copies of a context: each example of a request gets one."""
Classes = list[list[tuple[bytes, float]]]
"""Labels and scores of each example; b"" and 0 where the model does not return them."""


def paired(labels: Array | None, scores: Array | None) -> Classes:
    """Return the outputs of a classifier, one of which may be missing, both [n, k]."""
    present = scores if labels is None else labels
    assert present is not None, "a signature gives one of them at least"
    labels = np.full(present.shape, b"", object) if labels is None else labels
    scores = np.zeros(present.shape, np.float32) if scores is None else scores
    rows = zip(labels.tolist(), scores.tolist(), strict=True)
    return [list(zip(names, values, strict=True)) for names, values in rows]


def checked_classes(labels: Array | None, scores: Array | None, count: int) -> Classes:
    """Check a classifier's outputs for ``count`` examples."""
    if labels is not None:
        _check_matrix(labels, "classes", "DT_STRING", count)
    if scores is not None:
        _check_matrix(scores, "scores", "DT_FLOAT", count)
    if labels is not None and scores is not None and labels.shape[1] != scores.shape[1]:
        raise invalid_argument(
            "Tensors class and score should match in dim_size(1). "
            f"Got {labels.shape[1]} vs. {scores.shape[1]}"
        )
    return paired(labels, scores)


def checked_values(array: Array, count: int) -> Array:
    """Check a regression's output for ``count`` examples; return float32 [count]."""
    if array.ndim != 1 and (array.ndim != 2 or array.shape[1] != 1):
        raise invalid_argument(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] "
            f"but got {_shape(array)}"
        )
    if len(array) != count:
        raise invalid_argument(
            f"Input batch size did not match output batch size: {count} vs. {len(array)}"
        )
    if _dtype(array) != "DT_FLOAT":
        raise invalid_argument(f"Expected output Tensor of DT_FLOAT.  Got: {_dtype(array)}")
    return array.reshape(count)


def _check_matrix(array: Array, name: str, dtype: str, count: int) -> None:
    if array.ndim != 2:
        raise invalid_argument(
            f"Expected Tensor shape: [batch_size num_classes] but got {_shape(array)}"
        )
    if _dtype(array) != dtype:
        raise invalid_argument(f"Expected {name} Tensor of {dtype}. Got: {_dtype(array)}")
    if len(array) != count:
        raise invalid_argument(f"Expected {name} output batch size of {count}. Got: {len(array)}")


def _dtype(array: Array) -> str:
    return DTYPE_NAMES.get(array.dtype, str(array.dtype))


def _shape(array: Array) -> str:
    return "[" + ",".join(map(str, array.shape)) + "]"


_INPUTS, _CLASSES, _SCORES, _OUTPUTS = "inputs", "classes", "scores", "outputs"


Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class PreparedRun:
    """A signature to run, and a function to read its outputs: those of Regress as float32 [n]."""

    run: SignatureRun
    read: Callable[[Outputs], Classes | Array]


@dataclass(frozen=True)
class MultiInferenceTask:
    """One task of a MultiInference request."""

    model: str
    signature_name: str
    method: str


def serialized(examples: Sequence[bytes], context: bytes = b"") -> Array:
    """Return examples as the model's input, object [n].

    Args:
        context: A serialized tf.train.Example with features shared by all examples. It is prepended
            to each, and parsing merges the two: an example's own features take precedence.
    """
    if not examples:
        raise invalid_argument("Input is empty.")
    if (size := len(context) * len(examples)) > MAX_CONTEXT_BYTES:
        raise invalid_argument(
            f"The copies of the context for {len(examples)} examples have {size} bytes; the limit "
            f"is {MAX_CONTEXT_BYTES}. Send fewer examples in a request."
        )
    return string_array([context + example for example in examples] if context else examples)


def prepare(
    call: Call,
    method: str,
    signature_name: str,
    examples: Sequence[bytes],
    context: bytes = b"",
    *,
    check_method: bool = False,
) -> PreparedRun:
    """Prepare a Classify or Regress request, named by the method of signatures."""
    signature = call.find(signature_name)
    if signature is None:
        name = signature_name or DEFAULT_SIGNATURE
        raise invalid_argument(f"No signature was found with the name: {name}")
    if check_method:
        _check_method(signature, method)
    outputs = _OUTPUTS_OF[method](signature)
    return _prepared(signature, method, outputs, serialized(examples, context))


def infer(
    call: Call,
    tasks: Sequence[MultiInferenceTask],
    examples: Sequence[bytes],
    context: bytes = b"",
    *,
    check_method: bool = False,
) -> list[PreparedRun]:
    """Prepare a MultiInference request: one run per task, on the same examples."""
    plans: list[tuple[MultiInferenceTask, Signature, list[str]]] = []
    for task in tasks:
        signature = _joined(call, task, [(seen.model, plan.name) for seen, plan, _ in plans])
        if check_method:
            _check_method(signature, task.method)
        plans.append((task, signature, _OUTPUTS_OF[task.method](signature)))
    batch = serialized(examples, context)
    return [_prepared(signature, task.method, outputs, batch) for task, signature, outputs in plans]


def _prepared(
    signature: Signature, method: str, outputs: Sequence[str], batch: Array
) -> PreparedRun:
    def read(arrays: Outputs) -> Classes | Array:
        if method == CLASSIFY:
            return checked_classes(arrays.get(_CLASSES), arrays.get(_SCORES), len(batch))
        return checked_values(arrays[_OUTPUTS], len(batch))

    return PreparedRun(SignatureRun(signature, {_INPUTS: batch}, outputs), read)


def _check_method(signature: Signature, method: str) -> None:
    if signature.method_name != method:
        kind = "classification" if method == CLASSIFY else "regression"
        raise invalid_argument(
            f"Expected {kind} signature method_name to be {method}. Was: {signature.method_name}"
        )


def _joined(call: Call, task: MultiInferenceTask, before: Sequence[tuple[str, str]]) -> Signature:
    if not task.model:
        raise invalid_argument("Found ModelSpec with an empty model name.")
    if any(task.model != name for name, _ in before):
        raise invalid_argument(
            "All ModelSpecs in a MultiInferenceRequest must access the same model name."
        )
    name = task.signature_name or DEFAULT_SIGNATURE
    if any(name == seen for _, seen in before):
        raise invalid_argument(f"Duplicate evaluation of signature: {name}")
    signature = call.find(name)
    if signature is None:
        raise invalid_argument(f"Requested signature not found in model graph: {name}")
    if task.method not in _OUTPUTS_OF:
        raise StatusError(Code.UNIMPLEMENTED, f"Unsupported signature method_name: {task.method}")
    return signature


def _classify_outputs(signature: Signature) -> list[str]:
    _check_input(signature)
    count = len(signature.outputs)
    if count not in (1, 2):
        raise invalid_argument(f"Expected one or two output Tensors, found {count}")
    _check_input_name(signature, "classification")
    found = [name for name in (_CLASSES, _SCORES) if name in signature.outputs]
    if not found:
        raise invalid_argument(
            "Expected classification signature outputs to contain at least one of "
            f'"{_CLASSES}" or "{_SCORES}". Signature was: {_describe(signature)}'
        )
    return found


def _regress_outputs(signature: Signature) -> list[str]:
    _check_input(signature)
    if len(signature.outputs) != 1:
        raise invalid_argument("Expected one output Tensor.")
    _check_input_name(signature, "regression")
    if _OUTPUTS not in signature.outputs:
        raise invalid_argument(
            f"No regression outputs found in SignatureDef: {_describe(signature)}"
        )
    return [_OUTPUTS]


_OUTPUTS_OF = {CLASSIFY: _classify_outputs, REGRESS: _regress_outputs}


def _check_input(signature: Signature) -> None:
    if len(signature.inputs) != 1:
        raise invalid_argument("Expected one input Tensor.")


def _check_input_name(signature: Signature, kind: str) -> None:
    if _INPUTS not in signature.inputs:
        raise invalid_argument(f"No {kind} inputs found in SignatureDef: {_describe(signature)}")


def _describe(signature: Signature) -> str:
    inputs, outputs = (
        ", ".join(f"{key}: {spec.tensor} {spec.dtype}" for key, spec in sorted(specs.items()))
        for specs in (signature.inputs, signature.outputs)
    )
    return f"inputs {{ {inputs} }} outputs {{ {outputs} }} method_name: {signature.method_name}"
