"""OpenAPI paths of a version for the Open Inference Protocol. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

from timonel.serving.client.client_signature import is_image
from timonel.serving.console.openapi.parts import post, read, record, ref
from timonel.serving.console.openapi.tensors import Schema, TooLargeError, example, has_json
from timonel.serving.protocols.v2.request import BASE64, CONTENT_TYPE
from timonel.serving.protocols.v2.tensors import datatype_named
from timonel.serving.signature import Signature, TensorSpec

_SIZES: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_DATA: Final = {
    "type": "array",
    "description": "The elements in row-major order, flat or nested; left out where they follow "
    "the JSON as binary data.",
}
_TENSOR: Final = record(
    {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
    }
)


def infer_paths(
    base: str, name: str, signature: Signature, which: str, most: int
) -> dict[str, Any]:
    """Return the paths of a version below ``base``.

    Args:
        base: The path of the model, or of one of its versions.
        name: The model's name.
        signature: The version's default signature.
        which: A description of the version, for summaries.
        most: The largest tensor, in elements, in an example.
    """
    content: dict[str, Any] = {"schema": _request(signature)}
    made = _example(signature, most)
    if made is not None:
        content["example"] = made
    path = f"{base}/infer"
    summary = f"Infer with {which} (Open Inference Protocol)"
    infer = post(path, name, summary, content, ref("schemas", "InferAnswer"))
    metadata = read(base, name, f"The tensors of {which}", ref("schemas", "InferModel"))
    return {base: metadata, path: infer}


def infer_schemas() -> dict[str, Schema]:
    """Return the component schemas that `infer_paths` refers to."""
    output = record({**_TENSOR["properties"]})
    output["properties"]["data"] = {"type": "array"}
    return {
        "InferAnswer": record(
            {
                "model_name": {"type": "string"},
                "model_version": {"type": "string"},
                "outputs": {"type": "array", "items": output},
            }
        ),
        "InferModel": record(
            {
                "name": {"type": "string"},
                "versions": {"type": "array", "items": {"type": "string"}},
                "platform": {"type": "string"},
                "inputs": {"type": "array", "items": _TENSOR},
                "outputs": {"type": "array", "items": _TENSOR},
            }
        ),
    }


def _request(signature: Signature) -> Schema:
    inputs = [_input(name, spec) for name, spec in signature.inputs.items()]
    listed: Schema = {"type": "array", "items": {"anyOf": inputs}}
    listed["minItems"] = len(inputs) - len(signature.defaults)
    listed["maxItems"] = len(inputs)
    wanted = {"type": "array", "items": record({"name": {"enum": list(signature.outputs)}})}
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "inputs": listed,
            "outputs": wanted,
            "parameters": {"type": "object"},
        },
        "required": ["inputs"],
    }


def _input(name: str, spec: TensorSpec) -> Schema:
    shape: Schema = dict(_SIZES)
    if spec.shape is not None:
        shape |= {"minItems": len(spec.shape), "maxItems": len(spec.shape)}
    properties = {
        "name": {"const": name},
        "datatype": {"const": datatype_named(spec.dtype)},
        "shape": shape,
        "data": _DATA,
        "parameters": {"type": "object"},
    }
    return {
        "type": "object",
        "title": name,
        "properties": properties,
        "required": ["name", "datatype", "shape"],
    }


def _example(signature: Signature, most: int) -> dict[str, Any] | None:
    """Return an example request.

    None if it is too large, or JSON cannot carry its types.
    """
    specs = signature.inputs.items()
    if not all(has_json(spec) for _, spec in specs):
        return None
    try:
        return {"inputs": [_input_example(name, spec, most) for name, spec in specs]}
    except TooLargeError:
        return None


def _input_example(name: str, spec: TensorSpec, most: int) -> dict[str, Any]:
    declared = (-1,) if spec.shape is None else spec.shape
    sizes = [1 if size < 0 else size for size in declared]
    flat = TensorSpec("", spec.dtype, (math.prod(sizes),))
    described = {"name": name, "datatype": datatype_named(spec.dtype), "shape": sizes}
    data = example(name, flat, most=most)
    if not is_image(name, spec.dtype):
        return {**described, "data": data}
    texts = [each["b64"] for each in data]
    return {**described, "data": texts, "parameters": {CONTENT_TYPE: BASE64}}
