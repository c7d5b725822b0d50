"""The data plane: versions, their status, and the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from timonel.serving.inference.call import Call
from timonel.serving.inference.context import NO_CONTEXT, RequestContext
from timonel.serving.inference.logged_request import Recorder
from timonel.serving.manager.catalogue import Catalogue, ModelSpec
from timonel.serving.manager.plan import VersionStatus
from timonel.serving.settings import ModelSettings
from timonel.serving.signature import Signature
from timonel.serving.status import Code, StatusError


@dataclass(frozen=True)
class Metadata:
    """A loaded version's signatures and platform."""

    name: str
    version: int
    signatures: Mapping[str, Signature]
    platform: str


class _Held:
    """Context manager that holds a version; several times cheaper than a generator."""

    __slots__ = ("_catalogue", "_context", "_recorder", "_servable", "_spec")

    def __init__(
        self,
        catalogue: Catalogue,
        spec: ModelSpec,
        context: RequestContext,
        recorder: Recorder | None,
    ) -> None:
        self._catalogue = catalogue
        self._spec = spec
        self._context = context
        self._recorder = recorder

    def __enter__(self) -> Call:
        self._servable = self._catalogue.acquire(self._spec)
        return Call(self._servable, self._context, self._recorder)

    def __exit__(self, *_: object) -> None:
        self._servable.release()


class Configurator(Protocol):
    """Interface to the configuration of models; the model manager."""

    @property
    def models(self) -> tuple[ModelSettings, ...]:
        """The current configuration."""

    def reconfigure(self, models: Sequence[ModelSettings]) -> Future[None]:
        """Replace the configuration."""


class DataPlane:
    """Access to models, versions and configuration for all frontends. Thread-safe.

    Args:
        catalogue: The loaded versions.
        configurator: Replaces the configuration; None if it is fixed.
        recorder: Records a sample of requests and responses; None for no recording.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        configurator: Configurator | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._configurator = configurator
        self._recorder = recorder

    def configuration(self) -> tuple[ModelSettings, ...]:
        """Return the configured models.

        Raises:
            StatusError: The configuration is fixed.
        """
        return self._configurable().models

    def reconfigure(self, models: Sequence[ModelSettings]) -> Future[None]:
        """Replace the list of models; does not block.

        Returns:
            A future that is done when every new model serves a version, or fails with a
            `StatusError`. Cancelling it ends the wait, not the change.

        Raises:
            StatusError: The configuration is fixed.
        """
        return self._configurable().reconfigure(models)

    def _configurable(self) -> Configurator:
        if self._configurator is None:
            raise StatusError(Code.UNIMPLEMENTED, "The configuration of this server is fixed.")
        return self._configurator

    def call(
        self, spec: ModelSpec, context: RequestContext = NO_CONTEXT
    ) -> AbstractContextManager[Call]:
        """Hold a version during the block.

        Raises:
            StatusError: The version is not loaded; raised when entering the block.
        """
        return _Held(self._catalogue, spec, context, self._recorder)

    def status(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Return the status of a model's versions.

        Raises:
            StatusError: The model or version does not exist.
        """
        return self._catalogue.statuses(name, version)

    def metadata(self, spec: ModelSpec) -> Metadata:
        """Return the signatures of a loaded version.

        Raises:
            StatusError: The version is not loaded.
        """
        with self._catalogue.lease(spec) as servable:
            model = servable.model
            return Metadata(servable.name, servable.version, model.signatures, model.platform)

    def models(self) -> dict[str, tuple[VersionStatus, ...]]:
        """Return the status of every model; empty for one without versions."""
        return {name: self._catalogue.known(name) for name in self._catalogue.names}

    def labels(self, name: str, version: int) -> tuple[str, ...]:
        """Return the class names of a loaded version; empty if none."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.labels if servable else ()

    def version_labels(self, name: str) -> Mapping[str, int]:
        """Return a model's versions by label; they need not be loaded."""
        return self._catalogue.version_labels(name)

    def outage(self, name: str, version: int) -> StatusError | None:
        """Return why a loaded version is temporarily unavailable; None if available."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.model.outage if servable else None

    def restarts(self, name: str, version: int) -> int:
        """Return how often a loaded version's process was restarted."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.model.restarts if servable else 0

    def unready(self) -> list[str]:
        """Return the models without an available version."""
        return [
            name
            for name in self._catalogue.names
            if all(each.model.outage for each in self._catalogue.loaded(name).values())
        ]
