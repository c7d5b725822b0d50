"""Build the OpenAPI 3.1 document of a server. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from timonel.serving.console.openapi import signatures as asked
from timonel.serving.console.openapi.open_inference import infer_paths, infer_schemas
from timonel.serving.console.openapi.parts import (
    any_of,
    errors,
    identifier,
    post,
    read,
    record,
    ref,
)
from timonel.serving.console.openapi.server import METADATA, STATUS, Facts, server_paths
from timonel.serving.console.openapi.tensors import TooLargeError
from timonel.serving.signature import DEFAULT_SIGNATURE, Signature

INLINE: Final = 4096
"""Largest tensor in an inline example, in elements."""


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
    writer = _Writer(open_inference=facts.open_inference)
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

    def __init__(self, *, open_inference: bool) -> None:
        self._open_inference = open_inference
        self.paths: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {
            "Error": record({"error": {"type": "string"}}),
            "Status": STATUS,
            "Metadata": METADATA,
            **(infer_schemas() if open_inference else {}),
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
        for verb in asked.VERBS:
            component = _component(name, version.number, verb)
            if f"{component}.request" not in self.schemas:
                continue
            content: dict[str, Any] = {"schema": ref("schemas", f"{component}.request")}
            examples = self._examples(name, version, verb)
            if examples:
                content["examples"] = examples
            path = f"{base}:{verb}"
            summary = f"{verb.capitalize()} with {which}"
            answer = ref("schemas", f"{component}.answer")
            self.paths[path] = post(path, name, summary, content, answer)

    def _infer(self, suffix: str, name: str, version: Version, which: str) -> None:
        signature = version.signatures.get(DEFAULT_SIGNATURE)
        if self._open_inference and signature is not None and signature.inputs:
            base = f"/v2/models/{quote(name, safe='')}{suffix}"
            self.paths.update(infer_paths(base, name, signature, which, INLINE))

    def _define(self, name: str, version: Version) -> None:
        for verb in asked.VERBS:
            fit = [each for each in _ordered(version.signatures) if verb in asked.verbs(each)]
            if not fit:
                continue
            component = _component(name, version.number, verb)
            requests = [asked.request_schema(verb, each) for each in fit]
            answers = [asked.answer_schema(verb, each) for each in fit]
            self.schemas[f"{component}.request"] = any_of(requests)
            self.schemas[f"{component}.answer"] = any_of(answers)

    def _examples(self, name: str, version: Version, verb: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for signature in _ordered(version.signatures):
            if verb not in asked.verbs(signature):
                continue
            try:
                made = asked.examples(verb, signature, INLINE)
            except TooLargeError:
                at = example_path(name, version.number, signature.name)
                found[signature.name] = {"externalValue": at}
            else:
                for form, value in made.items():
                    found[f"{signature.name}, {form}"] = {"value": value}
        return found

    def _reads(self, base: str, name: str, schema: str, suffix: str, summary: str) -> None:
        path = base + suffix
        self.paths[path] = read(path, name, summary, ref("schemas", schema))


def example_path(name: str, version: int, signature: str) -> str:
    """Return the path of an example too large for the document."""
    return f"/openapi/examples/{quote(name, safe='')}/{version}/{quote(signature, safe='')}"


def _ordered(signatures: Mapping[str, Signature]) -> list[Signature]:
    """Sort signatures by name, with the default one first."""
    return sorted(signatures.values(), key=lambda each: (each.name != DEFAULT_SIGNATURE, each.name))


def _component(name: str, version: int, verb: str) -> str:
    return f"{identifier(name)}.v{version}.{verb}"
