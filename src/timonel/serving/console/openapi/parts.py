"""Building blocks of the OpenAPI document. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from timonel.serving.console.openapi.tensors import Schema

JSON: Final = "application/json"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]")
_ERRORS: Final = {
    "400": "The request is wrong, or the model refused it.",
    "404": "The model or version is not loaded.",
    "503": "The model cannot answer now.",
    "default": "Another error.",
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
