"""The versions in memory, who uses them, and what clients are told of the others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from timonel.serving.manager.plan import VersionStatus
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.threaded import scheduled
from timonel.serving.status import StatusError, invalid_argument, not_found


@dataclass(frozen=True)
class ModelSpec:
    """Which version of which model a request means: a number, a label, or else the latest."""

    name: str
    version: int | None = None
    label: str | None = None


class Servable:
    """A loaded version with a count of the requests that use it. Thread-safe.

    Args:
        name: The model's name.
        version: Its number.
        model: What was loaded; owned by this object from now on.
        labels: The class names that were exported with it.
    """

    def __init__(
        self, name: str, version: int, model: LoadedModel, labels: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.version = version
        self.model = scheduled(model)
        self.labels = labels
        self._lock = threading.Lock()
        self._users = 0
        self._when_idle: Callable[[], None] | None = None
        self._retired = False

    def acquire(self) -> bool:
        """Count one user more; false if the version is being unloaded."""
        with self._lock:
            if self._retired:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Count one user less; the last one of a retired version calls its ``when_idle``."""
        with self._lock:
            self._users -= 1
            when_idle = self._when_idle if self._users == 0 else None
            if when_idle is not None:
                self._when_idle = None
        if when_idle is not None:
            when_idle()

    def retire(self, when_idle: Callable[[], None]) -> None:
        """Take no new users; call ``when_idle`` once, when the last one has gone."""
        with self._lock:
            self._retired = True
            idle = self._users == 0
            if not idle:
                self._when_idle = when_idle
        if idle:
            when_idle()


class Catalogue:
    """The models a server offers: written by the loader, read by every request.

    Readers take no lock: what they read is replaced as a whole, never changed.

    Args:
        labels: Names of versions, by model; the loader replaces them.
    """

    def __init__(self, labels: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self._labels: Mapping[str, Mapping[str, int]] = labels or {}
        self._servables: dict[str, Mapping[int, Servable]] = {}
        self._statuses: dict[str, tuple[VersionStatus, ...]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models that are configured, loaded or not."""
        return tuple(self._labels)

    def version_labels(self, name: str) -> Mapping[str, int]:
        """Return the versions of a model that have names, by those."""
        return self._labels.get(name, {})

    def configure(self, labels: Mapping[str, Mapping[str, int]]) -> None:
        """Replace the models and their labels, at one stroke.

        Of models that are left out, the status of their versions is still told.
        """
        self._labels = {name: dict(versions) for name, versions in labels.items()}

    def publish(
        self,
        name: str,
        servables: Mapping[int, Servable],
        statuses: tuple[VersionStatus, ...],
    ) -> None:
        """Replace what is known of a model."""
        self._servables[name] = dict(servables)
        self._statuses[name] = statuses

    def forget(self, name: str) -> None:
        """Know no more of a model that is not configured."""
        self._servables.pop(name, None)
        self._statuses.pop(name, None)

    def loaded(self, name: str) -> Mapping[int, Servable]:
        """Return the versions of a model that serve."""
        return self._servables.get(name, {})

    def known(self, name: str) -> tuple[VersionStatus, ...]:
        """Return the status of every version of a model; none if there is no such model."""
        return self._statuses.get(name, ())

    def statuses(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Return the status of every version of a model, or of one.

        Raises:
            StatusError: There is no such model or version.
        """
        known = self.known(name)
        if not known:
            raise not_found(f"Could not find any versions of model {name}")
        if version is None:
            return known
        chosen = tuple(status for status in known if status.number == version)
        if not chosen:
            raise not_found(f"Could not find version {version} of model {name}")
        return chosen

    @contextlib.contextmanager
    def lease(self, spec: ModelSpec) -> Iterator[Servable]:
        """Give the version a request means, and keep it in memory during the block.

        Raises:
            StatusError: It is not loaded.
        """
        servable = self.acquire(spec)
        try:
            yield servable
        finally:
            servable.release()

    def acquire(self, spec: ModelSpec) -> Servable:
        """Return the version a request means, and count one user more of it; see `Servable`.

        Raises:
            StatusError: It is not loaded.
        """
        servable = self._find(spec)
        # One that is retired between the look-up and here has left the catalogue before that.
        while not servable.acquire():
            servable = self._find(spec)
        return servable

    def _find(self, spec: ModelSpec) -> Servable:
        version = spec.version if spec.label is None else self._labelled(spec.name, spec.label)
        loaded = self.loaded(spec.name)
        if version is None:
            if not loaded:
                raise not_found(f"Servable not found for request: Latest({spec.name})")
            return loaded[max(loaded)]
        if version not in loaded:
            raise not_found(f"Servable not found for request: Specific({spec.name}, {version})")
        return loaded[version]

    def _labelled(self, name: str, label: str) -> int:
        try:
            return self._labels[name][label]
        except KeyError:
            raise invalid_argument(f"Unrecognized servable version label: {label}") from None


def describe(error: StatusError) -> str:
    """Return an error's first line, for people."""
    return error.message.partition("\n")[0]
