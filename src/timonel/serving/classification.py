"""Classify, Regress and MultiInference: serialized tf.train.Examples in, checked results out.

Pure, but for the one call of the model that is handed in; gRPC and REST share it. Wordings are
TensorFlow Serving's, as clients match on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from timonel.serving.results import Classes, checked_classes, checked_values
from timonel.serving.runtimes.base import DEFAULT_SIGNATURE, Array, Signature
from timonel.serving.status import Code, StatusError, invalid_argument

__all__ = [
    "CLASSIFY",
    "REGRESS",
    "Classes",
    "Model",
    "Task",
    "classify",
    "infer",
    "regress",
    "serialized",
]

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
_INPUTS, _CLASSES, _SCORES, _OUTPUTS = "inputs", "classes", "scores", "outputs"


class Model(Protocol):
    """What is asked; `timonel.serving.core.Call` is one."""

    def find(self, signature_name: str) -> Signature | None:
        """Return a signature; an empty name means the default one."""

    def predict(
        self,
        signature: Signature,
        inputs: Mapping[str, Array],
        output_filter: Sequence[str] = (),
    ) -> dict[str, Array]:
        """Run a signature."""


@dataclass(frozen=True)
class Task:
    """One task of a MultiInference request.

    Args:
        model: The model's name.
        signature_name: The signature asked for; empty for the default one.
        method: `CLASSIFY` or `REGRESS`.
    """

    model: str
    signature_name: str
    method: str


def serialized(examples: Sequence[bytes], context: bytes = b"") -> Array:
    """Return examples as the model's input, object [n].

    Args:
        examples: Serialized tf.train.Examples.
        context: A serialized tf.train.Example whose features all of them have, unless they have
            their own of that name: it is put before each, and parsing merges the two.

    Raises:
        StatusError: There is no example.
    """
    if not examples:
        raise invalid_argument("Input is empty.")
    array = np.empty(len(examples), dtype=object)
    array[:] = [context + example for example in examples] if context else examples
    return array


def classify(
    model: Model,
    signature_name: str,
    examples: Sequence[bytes],
    context: bytes = b"",
    *,
    check_method: bool = False,
) -> Classes:
    """Classify serialized examples.

    Args:
        model: What is asked.
        signature_name: The signature; empty for the default one.
        examples: Serialized tf.train.Examples.
        context: What all of them share, see `serialized`.
        check_method: Whether the signature must be declared as one that classifies.

    Raises:
        StatusError: The signature or its outputs are not those of a classifier.
    """
    signature = _named(model, signature_name)
    if check_method:
        _check_method(signature, CLASSIFY)
    wanted = _classify_outputs(signature)
    outputs = model.predict(signature, {_INPUTS: serialized(examples, context)}, wanted)
    return checked_classes(outputs.get(_CLASSES), outputs.get(_SCORES), len(examples))


def regress(
    model: Model,
    signature_name: str,
    examples: Sequence[bytes],
    context: bytes = b"",
    *,
    check_method: bool = False,
) -> Array:
    """Return the regression value of each serialized example, float32 [n].

    Args:
        model: What is asked.
        signature_name: The signature; empty for the default one.
        examples: Serialized tf.train.Examples.
        context: What all of them share, see `serialized`.
        check_method: Whether the signature must be declared as one that regresses.

    Raises:
        StatusError: The signature or its output is not that of a regression.
    """
    signature = _named(model, signature_name)
    if check_method:
        _check_method(signature, REGRESS)
    wanted = _regress_outputs(signature)
    outputs = model.predict(signature, {_INPUTS: serialized(examples, context)}, wanted)
    return checked_values(outputs[_OUTPUTS], len(examples))


def infer(
    model: Model,
    tasks: Sequence[Task],
    examples: Sequence[bytes],
    context: bytes = b"",
    *,
    check_method: bool = False,
) -> list[Classes | Array]:
    """Run several signatures of one version on the same examples.

    Returns:
        For each task what `classify` or `regress` would.

    Raises:
        StatusError: The tasks do not go together, or one of them failed.
    """
    plans: list[tuple[Task, Signature, list[str]]] = []
    for task in tasks:
        signature = _joined(model, task, [(seen.model, plan.name) for seen, plan, _ in plans])
        if check_method:
            _check_method(signature, task.method)
        wanted = _METHODS[task.method](signature)
        if plans and signature.inputs[_INPUTS].tensor != plans[0][1].inputs[_INPUTS].tensor:
            raise invalid_argument("Input tensor must be the same for all Signatures.")
        plans.append((task, signature, wanted))
    batch = serialized(examples, context)
    results: list[Classes | Array] = []
    for task, signature, wanted in plans:
        outputs = model.predict(signature, {_INPUTS: batch}, wanted)
        if task.method == CLASSIFY:
            labels, scores = outputs.get(_CLASSES), outputs.get(_SCORES)
            results.append(checked_classes(labels, scores, len(batch)))
        else:
            results.append(checked_values(outputs[_OUTPUTS], len(batch)))
    return results


def _named(model: Model, name: str) -> Signature:
    signature = model.find(name)
    if signature is None:
        raise invalid_argument(f"No signature was found with the name: {name or DEFAULT_SIGNATURE}")
    return signature


def _check_method(signature: Signature, method: str) -> None:
    if signature.method_name != method:
        kind = "classification" if method == CLASSIFY else "regression"
        raise invalid_argument(
            f"Expected {kind} signature method_name to be {method}. Was: {signature.method_name}"
        )


def _joined(model: Model, task: Task, before: Sequence[tuple[str, str]]) -> Signature:
    if not task.model:
        raise invalid_argument("Found ModelSpec with an empty model name.")
    if any(task.model != name for name, _ in before):
        raise invalid_argument(
            "All ModelSpecs in a MultiInferenceRequest must access the same model name."
        )
    name = task.signature_name or DEFAULT_SIGNATURE
    if any(name == seen for _, seen in before):
        raise invalid_argument(f"Duplicate evaluation of signature: {name}")
    signature = model.find(name)
    if signature is None:
        raise invalid_argument(f"Requested signature not found in model graph: {name}")
    if task.method not in _METHODS:
        raise StatusError(Code.UNIMPLEMENTED, f"Unsupported signature method_name: {task.method}")
    return signature


def _classify_outputs(signature: Signature) -> list[str]:
    _check_input(signature)
    count = len(signature.outputs)
    if count not in (1, 2):
        raise invalid_argument(f"Expected one or two output Tensors, found {count}")
    _check_input_name(signature, "classification")
    wanted = [name for name in (_CLASSES, _SCORES) if name in signature.outputs]
    if not wanted:
        raise invalid_argument(
            "Expected classification signature outputs to contain at least one of "
            f'"{_CLASSES}" or "{_SCORES}". Signature was: {_describe(signature)}'
        )
    return wanted


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


_METHODS = {CLASSIFY: _classify_outputs, REGRESS: _regress_outputs}


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
