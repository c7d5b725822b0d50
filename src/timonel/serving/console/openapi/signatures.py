"""Schemas and examples of REST requests and responses of signatures. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from timonel.serving.console.openapi.tensors import (
    Large,
    Schema,
    example,
    has_json,
    has_rows,
    tensor,
)
from timonel.serving.inference.classification import CLASSIFY, REGRESS
from timonel.serving.signature import DEFAULT_SIGNATURE, STRING, Signature, TensorSpec

VERBS: Final = {"predict": "predict", "classify": CLASSIFY, "regress": REGRESS}
_FEATURE: Final = {"anyOf": [{"type": kind} for kind in ("number", "string", "boolean", "object")]}
_EXAMPLE: Final = {
    "type": "object",
    "description": "Features by name: a value, or a list of them. Write 2.0, not 2, for a float.",
    "additionalProperties": {"anyOf": [_FEATURE, {"type": "array", "items": _FEATURE}]},
}


def verbs(signature: Signature) -> tuple[str, ...]:
    """Return the `VERBS` that a signature supports."""
    found = []
    if (
        signature.inputs
        and signature.outputs
        and all(map(has_json, (*signature.inputs.values(), *signature.outputs.values())))
    ):
        found.append("predict")
    takes_examples = [(name, spec.dtype) for name, spec in signature.inputs.items()]
    if takes_examples == [("inputs", STRING)]:
        outputs = signature.outputs.keys()
        if outputs and outputs <= {"classes", "scores"}:
            found.append("classify")
        elif outputs == {"outputs"}:
            found.append("regress")
    return tuple(found)


def request_schema(verb: str, signature: Signature) -> Schema:
    """Return the schema of a request for a signature."""
    if verb != "predict":
        examples = {"type": "array", "items": _EXAMPLE, "minItems": 1}
        return _request(signature, {"examples": examples, "context": _EXAMPLE}, ["examples"])
    forms = []
    if has_rows(signature.inputs):
        rows = {"type": "array", "items": _inputs(signature.inputs, as_row=True), "minItems": 1}
        forms.append(_request(signature, {"instances": rows}, ["instances"], without="inputs"))
    columns = {"inputs": _inputs(signature.inputs, as_row=False)}
    forms.append(_request(signature, columns, ["inputs"], without="instances"))
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def answer_schema(verb: str, signature: Signature) -> Schema:
    """Return the schema of a response of a signature."""
    if verb == "classify":
        pair = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]}
        results: Schema = {"type": "array", "items": {"type": "array", "items": pair}}
        return _object({"results": results})
    if verb == "regress":
        return _object({"results": {"type": "array", "items": {"type": "number"}}})
    forms = []
    if has_rows(signature.inputs) and has_rows(signature.outputs):
        row = _outputs(signature.outputs, as_row=True)
        forms.append(_object({"predictions": {"type": "array", "items": row}}))
    forms.append(_object({"outputs": _outputs(signature.outputs, as_row=False)}))
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def examples(
    verb: str, signature: Signature, most: int, large: Large | None = None
) -> dict[str, Any]:
    """Return example requests by form, valid in types and shapes.

    Args:
        verb: One of `VERBS`.
        signature: The signature.
        most: The largest tensor, in elements, to write out.
        large: Returns a placeholder for a larger tensor; by default that is an error.

    Raises:
        TooLargeError: A tensor has more elements.
    """
    named = {} if signature.name == DEFAULT_SIGNATURE else {"signature_name": signature.name}
    if verb != "predict":
        # Only the graph knows its features.
        return {"examples": {**named, "examples": [{"feature": [1.0]}]}}
    value = functools.partial(example, most=most, large=large)
    found = {}
    if has_rows(signature.inputs):
        row = {name: value(name, spec, as_row=True) for name, spec in signature.inputs.items()}
        found["rows"] = {**named, "instances": [_bare(row)]}
    columns = {name: value(name, spec) for name, spec in signature.inputs.items()}
    found["columns"] = {**named, "inputs": _bare(columns)}
    return found


def _request(
    signature: Signature, properties: Schema, required: list[str], without: str | None = None
) -> Schema:
    name: Schema = {"const": signature.name}
    needed = list(required)
    if signature.name == DEFAULT_SIGNATURE:
        name = {"enum": [signature.name, ""], "default": signature.name}
    else:
        needed.append("signature_name")
    schema: Schema = {
        "type": "object",
        "title": signature.name,
        "properties": {"signature_name": name, **properties},
        "required": needed,
    }
    if without is not None:
        schema["not"] = {"required": [without]}
    return schema


def _inputs(specs: Mapping[str, TensorSpec], *, as_row: bool) -> Schema:
    named = _object({name: tensor(spec, as_row=as_row) for name, spec in specs.items()})
    named["additionalProperties"] = False
    if len(specs) > 1:
        return named
    return {"anyOf": [tensor(next(iter(specs.values())), as_row=as_row), named]}


def _outputs(specs: Mapping[str, TensorSpec], *, as_row: bool) -> Schema:
    if len(specs) == 1:
        return tensor(next(iter(specs.values())), as_row=as_row)
    return _object({name: tensor(spec, as_row=as_row) for name, spec in specs.items()})


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _bare(named: dict[str, Any]) -> Any:
    """Omit the name of a single tensor, as is common."""
    return next(iter(named.values())) if len(named) == 1 else named
