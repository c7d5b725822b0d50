"""JSON Schemas, examples and other building blocks of the OpenAPI document. Pure."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from timonel.serving.client.connection import is_image
from timonel.serving.signature import (
    CLASSIFY,
    DEFAULT_SIGNATURE,
    NUMPY_TYPES,
    REGRESS,
    STRING,
    Signature,
    TensorSpec,
    display_name,
)

JSON: Final = "application/json"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]")
_ERRORS: Final = {
    "400": "The request is invalid, or the model rejected it.",
    "404": "The model or version is not loaded.",
    "503": "The model is temporarily unavailable.",
    "default": "Other errors.",
}


def identifier(text: str) -> str:
    """Encode text in letters, digits and ``_``; distinct texts stay distinct."""
    return _UNSAFE.sub(lambda found: f"_{ord(found[0]):x}_", text)


def ref(kind: str, name: str) -> dict[str, str]:
    """Return a reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def any_of(schemas: Sequence[Schema]) -> Schema:
    """Return the schema of values that match one of several schemas."""
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def record(properties: Mapping[str, Any]) -> Schema:
    """Return the schema of an object with the given properties, all required."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def read(path: str, tag: str, summary: str, schema: Schema) -> dict[str, Any]:
    """Return the path item of a GET operation."""
    operation = {
        "operationId": identifier(path),
        "summary": summary,
        "tags": [tag],
        "responses": responses(schema),
    }
    return {"get": operation}


def post(
    path: str, tag: str, summary: str, content: Mapping[str, Any], answer: Schema
) -> dict[str, Any]:
    """Return the path item of a POST operation with a JSON request.

    Args:
        path: The path.
        tag: The tag of the operation.
        summary: The summary of the operation.
        content: The schema of the request, and examples.
        answer: The schema of the response.
    """
    operation = {
        "operationId": identifier(path),
        "summary": summary,
        "tags": [tag],
        "requestBody": {"required": True, "content": {JSON: dict(content)}},
        "responses": responses(answer),
    }
    return {"post": operation}


def responses(schema: Schema) -> dict[str, Any]:
    """Return the responses of an operation that returns JSON or an error."""
    answers: dict[str, Any] = {"200": {"description": "OK", "content": {JSON: {"schema": schema}}}}
    return answers | {code: ref("responses", f"Error_{code}") for code in _ERRORS}


def errors() -> dict[str, Any]:
    """Return the component responses that `responses` refers to."""
    content = {JSON: {"schema": ref("schemas", "Error")}}
    return {
        f"Error_{code}": {"description": text, "content": content} for code, text in _ERRORS.items()
    }


Schema = dict[str, Any]
Large = Callable[[TensorSpec, Sequence[int]], Any]

_FORMATS: Final = {"DT_FLOAT": "float", "DT_DOUBLE": "double"}
_INTEGERS: Final = frozenset(
    {
        "DT_INT8",
        "DT_INT16",
        "DT_INT32",
        "DT_INT64",
        "DT_UINT8",
        "DT_UINT32",
        "DT_UINT64",
    }
)
SMALL_PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAASUlEQVR42mNggAMWDh4BEQkZBgYOAQkFDQMLBgYe"
    "CRUDG48QBgYBBQOHgIQCBgYRDZuAlIoeBgYJA4+EigkrGBhkLEIKelYcAQABlwxBTVvBigAAAABJRU5ErkJggg=="
)
"""Image of 8 by 8 grey pixels in base64, for image models."""
_TEXT: Final = {"type": "string"}
_BYTES: Final = {
    "type": "object",
    "description": "Bytes, in base64.",
    "properties": {"b64": {"type": "string", "contentEncoding": "base64"}},
    "required": ["b64"],
    "additionalProperties": False,
}


class TooLargeError(ValueError):
    """An example would have too many elements to write out."""


def has_json(spec: TensorSpec) -> bool:
    """Whether TensorFlow Serving's JSON can carry a tensor's data type."""
    return spec.dtype in _INTEGERS | _FORMATS.keys() | {"DT_BOOL", STRING}


def has_rows(specs: Mapping[str, TensorSpec]) -> bool:
    """Whether all tensors have, or may have, a first dimension."""
    return all(spec.shape is None or len(spec.shape) > 0 for spec in specs.values())


def title(spec: TensorSpec) -> str:
    """Describe data type and shape, such as ``float [?, 28, 28]``."""
    if spec.shape is None:
        return f"{display_name(spec.dtype)} of any shape"
    sizes = ", ".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{display_name(spec.dtype)} [{sizes}]"


def tensor(spec: TensorSpec, *, as_row: bool = False) -> Schema:
    """Return the schema of a tensor as nested lists.

    Args:
        spec: The tensor; `has_json` must hold.
        as_row: Omit the first dimension.
    """
    schema = _element(spec.dtype)
    if spec.shape is None:
        return {"anyOf": [schema, {"type": "array"}], "description": title(spec)}
    for size in reversed(spec.shape[1:] if as_row else spec.shape):
        schema = {"type": "array", "items": schema}
        if size >= 0:
            schema |= {"minItems": size, "maxItems": size}
    return {**schema, "description": title(spec)}


def example(
    name: str, spec: TensorSpec, *, as_row: bool = False, most: int, large: Large | None = None
) -> Any:
    """Return an example value of a tensor.

    Unknown sizes, such as the batch size, are 1.

    Args:
        name: The tensor's name in requests.
        spec: The tensor; `has_json` must hold.
        as_row: Omit the first dimension.
        most: The largest tensor, in elements, to write out.
        large: Returns a placeholder for a larger tensor; by default that is an error.

    Raises:
        TooLargeError: The tensor has more elements.
    """
    declared = spec.shape if spec.shape is not None else (-1,)
    sizes = [1 if size < 0 else size for size in (declared[1:] if as_row else declared)]
    if math.prod(sizes) > most:
        if large is None:
            raise TooLargeError(f"{title(spec)} has more than {most} elements")
        return large(spec, sizes)
    value: Any = _value(name, spec.dtype)
    for size in reversed(sizes):
        value = [value] * size
    return value


def _element(dtype: str) -> Schema:
    if dtype in _FORMATS:
        return {"type": "number", "format": _FORMATS[dtype]}
    if dtype in _INTEGERS:
        limits = np.iinfo(NUMPY_TYPES[dtype])
        return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
    return {"type": "boolean"} if dtype == "DT_BOOL" else {"anyOf": [_TEXT, _BYTES]}


def _value(name: str, dtype: str) -> Any:
    if dtype == STRING:
        return {"b64": SMALL_PNG} if is_image(name, dtype) else "text"
    if dtype == "DT_BOOL":
        return True
    return 1 if dtype in _INTEGERS else 0.5


VERBS: Final = {"predict": "predict", "classify": CLASSIFY, "regress": REGRESS}
_FEATURE: Final = {"anyOf": [{"type": kind} for kind in ("number", "string", "boolean", "object")]}
_EXAMPLE: Final = {
    "type": "object",
    "description": "Features by name: a value or a list of values. Write 2.0, not 2, for a float.",
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
    return any_of(forms)


def answer_schema(verb: str, signature: Signature) -> Schema:
    """Return the schema of a response of a signature."""
    if verb == "classify":
        pair = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]}
        results: Schema = {"type": "array", "items": {"type": "array", "items": pair}}
        return record({"results": results})
    if verb == "regress":
        return record({"results": {"type": "array", "items": {"type": "number"}}})
    forms = []
    if has_rows(signature.inputs) and has_rows(signature.outputs):
        row = _outputs(signature.outputs, as_row=True)
        forms.append(record({"predictions": {"type": "array", "items": row}}))
    forms.append(record({"outputs": _outputs(signature.outputs, as_row=False)}))
    return any_of(forms)


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
    named = record({name: tensor(spec, as_row=as_row) for name, spec in specs.items()})
    named["additionalProperties"] = False
    if len(specs) > 1:
        return named
    return {"anyOf": [tensor(next(iter(specs.values())), as_row=as_row), named]}


def _outputs(specs: Mapping[str, TensorSpec], *, as_row: bool) -> Schema:
    if len(specs) == 1:
        return tensor(next(iter(specs.values())), as_row=as_row)
    return record({name: tensor(spec, as_row=as_row) for name, spec in specs.items()})


def _bare(named: dict[str, Any]) -> Any:
    """Omit the name of a single tensor, as is common."""
    return next(iter(named.values())) if len(named) == 1 else named
