"""Data of the page and the OpenAPI document, from the data plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from timonel.serving.auth.policy import viewer_may
from timonel.serving.client.connection import is_image
from timonel.serving.console.openapi.document import Facts, Model, Version, document
from timonel.serving.console.openapi.schemas import examples, has_json, title, verbs
from timonel.serving.console.page.history import Point
from timonel.serving.inference import DataPlane, Metadata
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.settings.auth import Action
from timonel.serving.signature import DEFAULT_SIGNATURE, Signature, TensorSpec
from timonel.serving.status import StatusError


class ServerDescription:
    """Description of a server.

    Thread-safe except for `seen`, which belongs to a request's task.

    Args:
        plane: Data plane with the models.
        facts: Server facts besides the models.
    """

    def __init__(self, plane: DataPlane, facts: Facts) -> None:
        self.plane = plane
        self._facts = facts

    @property
    def is_closed(self) -> bool:
        """Whether credentials are required."""
        return self._facts.is_closed

    @property
    def release(self) -> str:
        """The server's version."""
        return self._facts.release

    def seen(self, action: Action) -> tuple[str, ...]:
        """Return the models on which the current request's sender may do ``action``."""
        names = self.plane.models()
        return tuple(name for name in names if viewer_may(action, name, is_closed=self.is_closed))

    def labels(self, name: str) -> dict[str, int]:
        """Return a model's version numbers by label."""
        return dict(self.plane.version_labels(name))

    def document(self, names: Sequence[str]) -> bytes:
        """Return the OpenAPI document of the given models."""
        models = [Model(name, self._versions(name), self.labels(name)) for name in names]
        return orjson.dumps(document(models, self._facts))

    def _versions(self, name: str) -> list[Version]:
        found = []
        for status in self.plane.models().get(name, ()):
            try:
                metadata = self.plane.metadata(ModelSpec(name, status.number))
            except StatusError:
                continue  # not loaded, or no longer
            found.append(Version(status.number, metadata.signatures))
        return found


_WRITTEN_OUT: Final = 256
"""Largest tensor, in elements, that the form writes out."""
_NOT_IN_JSON: Final = "has a data type that JSON cannot represent; use gRPC"
_ONE_SIDED: Final = "has no inputs or no outputs"


def model_view(
    plane: DataPlane, name: str, labels: dict[str, int], latest: Point
) -> dict[str, Any]:
    """Return a model's versions and current traffic."""
    return {
        "name": name,
        "now": {"rate": latest.rate, "errors": latest.errors, "p99": latest.p99},
        "versions": [
            {
                "version": status.number,
                "state": status.state.value,
                "labels": [label for label, number in labels.items() if number == status.number],
                "restarts": plane.restarts(name, status.number),
                **_trouble(plane, name, status.number, status.message),
            }
            for status in plane.models().get(name, ())
        ],
    }


def _trouble(plane: DataPlane, name: str, version: int, message: str) -> dict[str, Any]:
    outage = plane.outage(name, version)
    if outage is not None:
        return {"away": True, "message": outage.message}
    return {"away": False, "message": message}


def form_view(metadata: Metadata, classes: Sequence[str]) -> dict[str, Any]:
    """Return the data of a version's form: its signatures with examples.

    Args:
        metadata: The version's signatures.
        classes: The names of its classes, if any.
    """
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
        "verbs": {verb: examples(verb, signature, _WRITTEN_OUT, _placeholder) for verb in possible},
        "why_not": "" if possible else _why_not(signature),
    }


def _placeholder(spec: TensorSpec, sizes: Sequence[int]) -> dict[str, Any]:
    """Return a placeholder, which the form expands on sending."""
    return {"$fill": 0 if "INT" in spec.dtype else 0.5, "$shape": list(sizes)}


def _tensors(specs: Any) -> list[dict[str, str]]:
    return [{"name": name, "what": title(spec)} for name, spec in specs.items()]


def _image_input(signature: Signature) -> str | None:
    """Return the name of a single image input; None otherwise."""
    if len(signature.inputs) != 1:
        return None
    ((name, spec),) = signature.inputs.items()
    return name if is_image(name, spec.dtype) and spec.shape in {(-1,), None} else None


def _why_not(signature: Signature) -> str:
    known = all(map(has_json, (*signature.inputs.values(), *signature.outputs.values())))
    return _ONE_SIDED if known else _NOT_IN_JSON
