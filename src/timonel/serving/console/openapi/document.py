"""Build the OpenAPI 3.1 document of a server. Pure."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from timonel.serving.client.connection import is_image
from timonel.serving.console.openapi.schemas import (
    VERBS,
    Schema,
    TooLargeError,
    answer_schema,
    any_of,
    errors,
    example,
    examples,
    has_json,
    identifier,
    post,
    read,
    record,
    ref,
    request_schema,
    verbs,
)
from timonel.serving.protocols.v2.requests import BASE64, CONTENT_TYPE
from timonel.serving.protocols.v2.tensors import datatype_named
from timonel.serving.signature import DEFAULT_SIGNATURE, Signature, TensorSpec

INLINE: Final = 4096
"""Largest tensor in an example, in elements."""


@dataclass(frozen=True)
class Version:
    """Number and signatures of a loaded version."""

    number: int
    signatures: Mapping[str, Signature]


@dataclass(frozen=True)
class Model:
    """A model and its loaded versions.

    Args:
        name: The model's name.
        versions: The loaded versions, in any order.
        labels: Version numbers by label.
    """

    name: str
    versions: Sequence[Version] = ()
    labels: Mapping[str, int] = field(default_factory=dict)


def document(models: Sequence[Model], facts: Facts) -> dict[str, Any]:
    """Build the OpenAPI document of a server with the given models."""
    writer = _Writer()
    for model in models:
        writer.add(model)
    security: dict[str, Any] = {}
    if facts.is_closed:
        schemes = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        writer.components["securitySchemes"] = schemes
        security = {"security": [{name: []} for name in schemes]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "timonel",
            "version": facts.release,
            "description": "TensorFlow Serving's REST API, with the models that are loaded now.",
        },
        "servers": [{"url": "/"}],
        **security,
        "tags": [{"name": model.name} for model in models] + [{"name": "server"}],
        "paths": {**server_paths(facts), **writer.paths},
        "components": writer.components,
    }


class _Writer:
    """Collector of paths and components."""

    def __init__(self) -> None:
        self.paths: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {
            "Error": record({"error": {"type": "string"}}),
            "Status": STATUS,
            "Metadata": METADATA,
            **infer_schemas(),
        }
        self.components: dict[str, Any] = {
            "schemas": self.schemas,
            "responses": errors(),
        }

    def add(self, model: Model) -> None:
        """Add a model: latest version, labels, and each version by number."""
        base = f"/v1/models/{quote(model.name, safe='')}"
        self._reads(base, model.name, "Status", "", "The state of every version")
        by_number = {version.number: version for version in model.versions}
        for number in sorted(by_number):
            version = by_number[number]
            self._define(model.name, version)
            at = f"{base}/versions/{number}"
            self._reads(at, model.name, "Status", "", f"The state of version {number}")
            self._version(at, model.name, version, f"version {number}")
            self._infer(f"/versions/{number}", model.name, version, f"version {number}")
        if by_number:
            latest = by_number[max(by_number)]
            self._version(base, model.name, latest, "the latest version")
            self._infer("", model.name, latest, "the latest version")
        for label, number in model.labels.items():
            if number in by_number:
                at = f"{base}/labels/{quote(label, safe='')}"
                self._version(at, model.name, by_number[number], f"the version labelled {label}")

    def _version(self, base: str, name: str, version: Version, which: str) -> None:
        self._reads(base, name, "Metadata", "/metadata", f"The signatures of {which}")
        for verb in VERBS:
            component = _component(name, version.number, verb)
            if f"{component}.request" not in self.schemas:
                continue
            content: dict[str, Any] = {"schema": ref("schemas", f"{component}.request")}
            if shown := _examples(version, verb):
                content["examples"] = shown
            path = f"{base}:{verb}"
            summary = f"{verb.capitalize()} with {which}"
            answer = ref("schemas", f"{component}.answer")
            self.paths[path] = post(path, name, summary, content, answer)

    def _infer(self, suffix: str, name: str, version: Version, which: str) -> None:
        signature = version.signatures.get(DEFAULT_SIGNATURE)
        if signature is not None and signature.inputs:
            base = f"/v2/models/{quote(name, safe='')}{suffix}"
            self.paths.update(infer_paths(base, name, signature, which, INLINE))

    def _define(self, name: str, version: Version) -> None:
        for verb in VERBS:
            fit = [each for each in _ordered(version.signatures) if verb in verbs(each)]
            if fit:
                component = _component(name, version.number, verb)
                self.schemas[f"{component}.request"] = any_of(
                    [request_schema(verb, s) for s in fit]
                )
                self.schemas[f"{component}.answer"] = any_of([answer_schema(verb, s) for s in fit])

    def _reads(self, base: str, name: str, schema: str, suffix: str, summary: str) -> None:
        path = base + suffix
        self.paths[path] = read(path, name, summary, ref("schemas", schema))


def _examples(version: Version, verb: str) -> dict[str, Any]:
    """Return the example requests of a version's signatures that are small enough."""
    found: dict[str, Any] = {}
    for signature in _ordered(version.signatures):
        if verb in verbs(signature):
            with contextlib.suppress(TooLargeError):
                for form, value in examples(verb, signature, INLINE).items():
                    found[f"{signature.name}, {form}"] = {"value": value}
    return found


def _ordered(signatures: Mapping[str, Signature]) -> list[Signature]:
    """Sort signatures by name, with the default one first."""
    return sorted(signatures.values(), key=lambda each: (each.name != DEFAULT_SIGNATURE, each.name))


def _component(name: str, version: int, verb: str) -> str:
    return f"{identifier(name)}.v{version}.{verb}"


_SIZES: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_DATA: Final = {
    "type": "array",
    "description": "The elements in row-major order, flat or nested; omitted if they follow the "
    "JSON as binary data.",
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


_REASON: Final = record({"error_code": {"type": "string"}, "error_message": {"type": "string"}})
_VERSION: Final = {
    "version": {"type": "string", "pattern": "^[0-9]+$"},
    "state": {"enum": ["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
    "status": _REASON,
}
STATUS: Final = record({"model_version_status": {"type": "array", "items": record(_VERSION)}})
_LABELS: Final = {"type": "array", "items": {"type": "string"}, "description": "Class names."}
MODELS: Final = record(
    {
        "models": {
            "type": "array",
            "items": record(
                {
                    "name": {"type": "string"},
                    "versions": {
                        "type": "array",
                        "items": record({**_VERSION, "labels": _LABELS}),
                    },
                }
            ),
        }
    }
)
METADATA: Final = record(
    {
        "model_spec": record(
            {
                "name": {"type": "string"},
                "signature_name": {"type": "string"},
                "version": {"type": "string"},
            }
        ),
        "metadata": {"type": "object"},
    }
)


@dataclass(frozen=True)
class Facts:
    """Server facts in a document, besides its models.

    Args:
        release: The server's version.
        is_closed: Whether credentials are required.
        lists: Whether the server lists its models and their configuration.
        metrics_path: The path of the metrics; None for no metrics.
    """

    release: str
    is_closed: bool = False
    lists: bool = True
    metrics_path: str | None = None


def server_paths(facts: Facts) -> dict[str, Any]:
    """Return the paths that are not about a single model."""
    paths: dict[str, Any] = {}
    for path, summary in {
        "/livez": "Whether the process is alive",
        "/readyz": "Whether every model is ready",
    }.items():
        text = {"text/plain": {"schema": {"type": "string"}}}
        paths[path] = {
            "get": {
                "operationId": identifier(path),
                "summary": summary,
                "tags": ["server"],
                "security": [],
                "responses": {
                    "200": {"description": "Yes.", "content": text},
                    "503": {"description": "No, with the reason.", "content": text},
                },
            }
        }
    if facts.lists:
        paths["/v1/models"] = read("/v1/models", "server", "The models and their versions", MODELS)
        config = {"type": "object", "description": "A ModelServerConfig."}
        paths["/v1/config"] = read(
            "/v1/config", "server", "The configuration of the models", config
        )
    if facts.metrics_path is not None:
        content = {"text/plain": {"schema": {"type": "string"}}}
        paths[facts.metrics_path] = {
            "get": {
                "operationId": "metrics",
                "summary": "Metrics, in Prometheus' text format",
                "tags": ["server"],
                "responses": {"200": {"description": "OK", "content": content}},
            }
        }
    return paths
