"""What a server can be asked: its versions, their state, and the configuration."""

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
    """A loaded version's signatures, and what it is."""

    name: str
    version: int
    signatures: Mapping[str, Signature]
    platform: str


class _Held:
    """What `DataPlane.call` returns; a generator would cost several times as much per request."""

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
    """What knows which models are configured, and can replace them; the loader."""

    @property
    def models(self) -> tuple[ModelSettings, ...]:
        """The configuration in force."""

    def reconfigure(self, models: Sequence[ModelSettings]) -> Future[None]:
        """Replace the configuration."""


class DataPlane:
    """What a server can be asked. Thread-safe.

    Args:
        catalogue: The versions in memory.
        configurator: What replaces the configuration; none where it is fixed.
        recorder: Takes a sample of what is asked and answered; none if nobody does.
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
        """Return the models that are configured now.

        Raises:
            StatusError: The configuration is fixed.
        """
        return self._configurable().models

    def reconfigure(self, models: Sequence[ModelSettings]) -> Future[None]:
        """Let a list of models take the place of the present one; does not block.

        Returns:
            What is done when every new model has a version that serves, or fails with a
            `StatusError`. Cancelling it ends the waiting, not the change.

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
            StatusError: It is not loaded; where the block begins.
        """
        return _Held(self._catalogue, spec, context, self._recorder)

    def status(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Return the status of a model's versions.

        Raises:
            StatusError: There is no such model or version.
        """
        return self._catalogue.statuses(name, version)

    def metadata(self, spec: ModelSpec) -> Metadata:
        """Return the signatures of a loaded version.

        Raises:
            StatusError: It is not loaded.
        """
        with self._catalogue.lease(spec) as servable:
            model = servable.model
            return Metadata(servable.name, servable.version, model.signatures, model.platform)

    def models(self) -> dict[str, tuple[VersionStatus, ...]]:
        """Return the status of every model; empty for one without versions."""
        return {name: self._catalogue.known(name) for name in self._catalogue.names}

    def labels(self, name: str, version: int) -> tuple[str, ...]:
        """Return the class names of a loaded version; none if it has none or is not loaded."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.labels if servable else ()

    def version_labels(self, name: str) -> Mapping[str, int]:
        """Return the versions of a model that have names, by those; they need not be loaded."""
        return self._catalogue.version_labels(name)

    def outage(self, name: str, version: int) -> StatusError | None:
        """Return why a loaded version answers nothing at present; none if it does answer."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.model.outage if servable else None

    def restarts(self, name: str, version: int) -> int:
        """Return how often what computes a loaded version was lost and started again."""
        servable = self._catalogue.loaded(name).get(version)
        return servable.model.restarts if servable else 0

    def unready(self) -> list[str]:
        """Return the models without a version that answers."""
        return [
            name
            for name in self._catalogue.names
            if all(each.model.outage for each in self._catalogue.loaded(name).values())
        ]
