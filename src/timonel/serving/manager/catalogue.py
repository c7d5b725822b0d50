"""Loaded versions, their users, and the status of all versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from timonel.serving.batching.scheduled_model import ScheduledModel
from timonel.serving.manager.plan import VersionStatus
from timonel.serving.signature import Signature
from timonel.serving.status import HungError, StatusError, invalid_argument, not_found
from timonel.storage.content_cache import FolderLease


@dataclass(frozen=True)
class ModelSpec:
    """A requested model and version: a number, a label, or the latest."""

    name: str
    version: int | None = None
    label: str | None = None


class Servable:
    """A loaded version with a count of the requests that use it. Thread-safe.

    Args:
        model: The loaded model; owned by this object from now on.
        missing: Value for a missing cell, by column, where the version takes them.
        folder: The version's folder, which this object releases.
    """

    def __init__(
        self,
        name: str,
        version: int,
        model: ScheduledModel,
        labels: tuple[str, ...] = (),
        missing: Mapping[str, float | str] = MappingProxyType({}),
        folder: FolderLease | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.model = model
        self.labels = labels
        self.missing = missing
        self._folder = folder
        self._lock = threading.Lock()
        self._users = 0
        self._when_idle: Callable[[], None] | None = None
        self._retired = False

    @property
    def folder(self) -> Path | None:
        """The version's folder, on this machine."""
        return None if self._folder is None else self._folder.path

    def acquire(self) -> bool:
        """Add a user; return False if the version is being unloaded."""
        with self._lock:
            if self._retired:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Remove a user, and call ``when_idle`` if a retired version becomes idle."""
        with self._lock:
            self._users -= 1
            when_idle = self._when_idle if self._users == 0 else None
            if when_idle is not None:
                self._when_idle = None
        if when_idle is not None:
            when_idle()

    def retire(self, when_idle: Callable[[], None]) -> None:
        """Accept no new users; call ``when_idle`` once the last one is gone."""
        with self._lock:
            self._retired = True
            idle = self._users == 0
            if not idle:
                self._when_idle = when_idle
        if idle:
            when_idle()

    def close(self) -> None:
        """Free the memory of a retired version, and release its folder."""
        try:
            self.model.close()
        finally:
            if self._folder is not None:
                self._folder.release()


@dataclass(frozen=True)
class Metadata:
    """A loaded version's signatures and platform."""

    name: str
    version: int
    signatures: Mapping[str, Signature]
    platform: str


@dataclass(frozen=True)
class _Published:
    """What requests see of a model."""

    servables: Mapping[int, Servable]
    statuses: tuple[VersionStatus, ...]
    problem: str | None
    aliases: Mapping[str, int]


_NOTHING = _Published({}, (), None, {})


class Catalogue:
    """A server's models and versions: written by the loader, read by requests.

    Readers take no lock: the mappings they read are replaced, never changed in place.
    """

    def __init__(self, labels: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self._labels = labels or {}
        self._published: dict[str, _Published] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the configured models, loaded or not."""
        return tuple(self._labels)

    def version_labels(self, name: str) -> Mapping[str, int]:
        """Return a model's versions by label: of the configuration, and its aliases."""
        return {**self._of(name).aliases, **self._labels.get(name, {})}

    def configure(self, labels: Mapping[str, Mapping[str, int]]) -> None:
        """Replace the models and their labels atomically; keep the statuses of removed models."""
        self._labels = {name: dict(versions) for name, versions in labels.items()}

    def publish(
        self,
        name: str,
        servables: Mapping[int, Servable],
        statuses: tuple[VersionStatus, ...],
        problem: str | None = None,
        aliases: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Replace the versions, statuses and aliases of a model, and why no version is found."""
        self._published[name] = _Published(dict(servables), statuses, problem, aliases)

    def forget(self, name: str) -> None:
        """Drop a model that is no longer configured."""
        self._published.pop(name, None)

    def loaded(self, name: str) -> Mapping[int, Servable]:
        """Return the loaded versions of a model."""
        return self._of(name).servables

    def known(self, name: str) -> tuple[VersionStatus, ...]:
        """Return the statuses of all versions; empty for an unknown model."""
        return self._of(name).statuses

    def statuses(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Return the status of every version of a model, or of one."""
        known = self.known(name)
        if not known:
            problem = self._of(name).problem
            reason = f": {problem}" if problem else ""
            raise not_found(f"Could not find any versions of model {name}{reason}")
        if version is None:
            return known
        chosen = tuple(status for status in known if status.number == version)
        if not chosen:
            raise not_found(f"Could not find version {version} of model {name}")
        return chosen

    def metadata(self, spec: ModelSpec) -> Metadata:
        """Return the signatures of a loaded version."""
        servable = self.acquire(spec)
        try:
            model = servable.model
            return Metadata(servable.name, servable.version, model.signatures, model.platform)
        finally:
            servable.release()

    def outage(self, name: str, version: int) -> StatusError | None:
        """Return why a loaded version is temporarily unavailable; None if available."""
        servable = self.loaded(name).get(version)
        return servable.model.outage if servable else None

    def hung(self) -> list[str]:
        """Return the models with a version that hangs until the server is restarted."""
        return [
            name
            for name in self.names
            for each in self.loaded(name).values()
            if isinstance(each.model.outage, HungError)
        ]

    def unready(self) -> list[str]:
        """Return the models without an available version."""
        return [
            name
            for name in self.names
            if all(each.model.outage for each in self.loaded(name).values())
        ]

    def acquire(self, spec: ModelSpec) -> Servable:
        """Return the requested version and add a user; see `Servable`."""
        servable = self._find(spec)
        # A version is removed from the catalogue before it is retired, so look it up again.
        while not servable.acquire():
            servable = self._find(spec)
        return servable

    def _of(self, name: str) -> _Published:
        return self._published.get(name, _NOTHING)

    def _find(self, spec: ModelSpec) -> Servable:
        # Read once: an alias names a version that is loaded at the same time.
        published = self._of(spec.name)
        version, loaded = spec.version, published.servables
        if spec.label is not None:
            version = self._labelled(spec.name, spec.label, published.aliases)
        if version is None:
            if not loaded:
                raise not_found(f"Servable not found for request: Latest({spec.name})")
            return loaded[max(loaded)]
        if version not in loaded:
            raise not_found(f"Servable not found for request: Specific({spec.name}, {version})")
        return loaded[version]

    def _labelled(self, name: str, label: str, aliases: Mapping[str, int]) -> int:
        for names in (self._labels.get(name, {}), aliases):
            if label in names:
                return names[label]
        raise invalid_argument(f"Unrecognized servable version label: {label}")
