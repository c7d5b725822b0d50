"""Description of a server: visible models and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from timonel.serving.auth.policy import viewer_may
from timonel.serving.console.openapi.document import Model, Version, document
from timonel.serving.console.openapi.server import Facts
from timonel.serving.console.openapi.signatures import examples
from timonel.serving.inference import DataPlane
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.settings.auth import Action
from timonel.serving.status import StatusError, not_found

LARGEST: Final = 2_000_000
"""Largest tensor, in elements, for which an example is generated."""


class Description:
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

    def example(self, name: str, version: int, signature: str) -> bytes:
        """Return an example Predict request for a signature of a loaded version.

        Raises:
            StatusError: The version or signature does not exist.
            TooLargeError: A tensor is larger than `LARGEST`.
        """
        found = self.plane.metadata(ModelSpec(name, version)).signatures.get(signature)
        if found is None:
            raise not_found(f"{name}/{version} has no signature {signature}")
        made = examples("predict", found, LARGEST)
        return orjson.dumps(made.get("rows") or made["columns"])

    def _versions(self, name: str) -> list[Version]:
        found = []
        for status in self.plane.models().get(name, ()):
            try:
                metadata = self.plane.metadata(ModelSpec(name, status.number))
            except StatusError:
                continue  # not loaded, or no longer
            found.append(Version(status.number, metadata.signatures))
        return found
