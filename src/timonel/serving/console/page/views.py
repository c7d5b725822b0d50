"""Data of the page, from the catalogue. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from timonel.serving.client.connection import is_image
from timonel.serving.console.page.examples import examples, has_json, verbs
from timonel.serving.console.page.history import Point
from timonel.serving.manager.catalogue import Catalogue, Metadata
from timonel.serving.signature import DEFAULT_SIGNATURE, Signature

_NOT_IN_JSON: Final = "has a data type that JSON cannot represent; use gRPC"
_ONE_SIDED: Final = "has no inputs or no outputs"


def model_view(catalogue: Catalogue, name: str, latest: Point) -> dict[str, Any]:
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


def form_view(metadata: Metadata, classes: Sequence[str]) -> dict[str, Any]:
    """Return the data of a version's form: its signatures with examples."""
    # Signatures without inputs and outputs, such as a SavedModel's initializer, are useless here.
    useful = [each for each in metadata.signatures.values() if each.inputs or each.outputs]
    ordered = sorted(useful, key=lambda each: (each.name != DEFAULT_SIGNATURE, each.name))
    return {
        "name": metadata.name,
        "version": metadata.version,
        "classes": list(classes),
        "signatures": [_signature(each) for each in ordered],
    }


def _signature(signature: Signature) -> dict[str, Any]:
    possible = verbs(signature)
    return {
        "name": signature.name,
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
        "image": _image_input(signature),
        "verbs": {verb: examples(verb, signature) for verb in possible},
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
