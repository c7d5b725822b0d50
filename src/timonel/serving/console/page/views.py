"""Data of the page: models, and forms with example requests. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from timonel.serving.client.connection import is_image
from timonel.serving.codec.tensors import JSON_TYPES
from timonel.serving.console.page.history import TrafficPoint
from timonel.serving.manager.catalogue import Catalogue, Metadata
from timonel.serving.signature import DEFAULT_SIGNATURE, STRING, Signature, TensorSpec

_NOT_IN_JSON: Final = "has a data type that JSON cannot represent; use gRPC"
_ONE_SIDED: Final = "has no inputs or no outputs"
_WRITTEN_OUT: Final = 256
"""Largest tensor, in elements, that an example writes out."""
SMALL_PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAASUlEQVR42mNggAMWDh4BEQkZBgYOAQkFDQMLBgYe"
    "CRUDG48QBgYBBQOHgIQCBgYRDZuAlIoeBgYJA4+EigkrGBhkLEIKelYcAQABlwxBTVvBigAAAABJRU5ErkJggg=="
)
"""Image of 8 by 8 grey pixels in base64, for image models."""


def model_view(catalogue: Catalogue, name: str, latest: TrafficPoint) -> dict[str, Any]:
    """Return a model's versions and current traffic."""
    labels, loaded = catalogue.version_labels(name), catalogue.loaded(name)
    return {
        "name": name,
        "now": {"rate": latest.rate, "errors": latest.errors, "p99": latest.p99},
        "versions": [
            {
                "version": status.number,
                "state": status.state.value,
                "labels": [label for label, number in labels.items() if number == status.number],
                "restarts": each.model.restarts if (each := loaded.get(status.number)) else 0,
                **_trouble(catalogue, name, status.number, status.message),
            }
            for status in catalogue.known(name)
        ],
    }


def _trouble(catalogue: Catalogue, name: str, version: int, message: str) -> dict[str, Any]:
    outage = catalogue.outage(name, version)
    if outage is not None:
        return {"away": True, "message": outage.message}
    return {"away": False, "message": message}


def form_view(
    metadata: Metadata, classes: Sequence[str], row: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the data of a version's form: its signatures with examples.

    ``row`` has values of the default signature's inputs by name; others are made up.
    """
    # Signatures without inputs and outputs, such as a SavedModel's initializer, are useless here.
    useful = [each for each in metadata.signatures.values() if each.inputs or each.outputs]
    ordered = sorted(useful, key=lambda each: (each.name != DEFAULT_SIGNATURE, each.name))
    return {
        "name": metadata.name,
        "version": metadata.version,
        "classes": list(classes),
        "signatures": [
            _signature(each, row if each.name == DEFAULT_SIGNATURE else {}) for each in ordered
        ],
    }


def _signature(signature: Signature, row: Mapping[str, Any]) -> dict[str, Any]:
    possible = verbs(signature)
    return {
        "name": signature.name,
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
        "image": _image_input(signature),
        "made_up": bool(signature.inputs.keys() - row.keys()),
        "verbs": {verb: examples(verb, signature, row) for verb in possible},
        "why_not": "" if possible else _why_not(signature),
    }


def _tensors(specs: Any) -> list[dict[str, str]]:
    return [{"name": name, "what": spec.title} for name, spec in specs.items()]


def _image_input(signature: Signature) -> str | None:
    """Return the name of a single image input; None otherwise."""
    if len(signature.inputs) != 1:
        return None
    ((name, spec),) = signature.inputs.items()
    return name if is_image(name, spec.dtype) and spec.shape in {(-1,), None} else None


def _why_not(signature: Signature) -> str:
    known = all(map(has_json, (*signature.inputs.values(), *signature.outputs.values())))
    return _ONE_SIDED if known else _NOT_IN_JSON


def has_json(spec: TensorSpec) -> bool:
    """Whether TensorFlow Serving's JSON can carry a tensor's data type."""
    return spec.dtype in JSON_TYPES


def verbs(signature: Signature) -> list[str]:
    """Return the methods that a signature supports: predict, and classify or regress."""
    found = []
    specs = (*signature.inputs.values(), *signature.outputs.values())
    if signature.inputs and signature.outputs and all(map(has_json, specs)):
        found.append("predict")
    if [(name, spec.dtype) for name, spec in signature.inputs.items()] == [("inputs", STRING)]:
        outputs = signature.outputs.keys()
        if outputs and outputs <= {"classes", "scores"}:
            found.append("classify")
        elif outputs == {"outputs"}:
            found.append("regress")
    return found


def examples(
    verb: str, signature: Signature, row: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return example requests by form; the page expands placeholders of large tensors."""
    named = {} if signature.name == DEFAULT_SIGNATURE else {"signature_name": signature.name}
    if verb != "predict":
        # Only the graph knows its features.
        return {"examples": {**named, "examples": [{"feature": [1.0]}]}}
    inputs, found = signature.inputs, {}
    if all(spec.shape is None or spec.shape for spec in inputs.values()):
        found["rows"] = {**named, "instances": [_values(inputs, row, as_row=True)]}
    found["columns"] = {**named, "inputs": _values(inputs, row, as_row=False)}
    return found


def _values(specs: Mapping[str, TensorSpec], row: Mapping[str, Any], *, as_row: bool) -> Any:
    named = {name: _example(name, spec, as_row=as_row) for name, spec in specs.items()}
    stored = row.keys() & {name for name in specs if not is_image(name, specs[name].dtype)}
    named |= {name: row[name] if as_row else [row[name]] for name in stored}
    # The name of a single tensor is commonly omitted.
    return next(iter(named.values())) if len(named) == 1 else named


def _example(name: str, spec: TensorSpec, *, as_row: bool) -> Any:
    declared = (-1,) if spec.shape is None else spec.shape
    # Unknown sizes, such as the batch size, are 1.
    sizes = [1 if size < 0 else size for size in (declared[1:] if as_row else declared)]
    if math.prod(sizes) > _WRITTEN_OUT:
        return {"$fill": 0 if "INT" in spec.dtype else 0.5, "$shape": sizes}
    value: Any = _value(name, spec.dtype)
    for size in reversed(sizes):
        value = [value] * size
    return value


def _value(name: str, dtype: str) -> Any:
    if dtype == STRING:
        return {"b64": SMALL_PNG} if is_image(name, dtype) else "text"
    if dtype == "DT_BOOL":
        return True
    return 1 if "INT" in dtype else 0.5
