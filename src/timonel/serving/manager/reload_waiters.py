"""Notify callers who wait for models to become available."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from timonel.errors import ServingError
from timonel.serving.manager.catalogue import describe
from timonel.serving.manager.managed_model import ManagedModel
from timonel.serving.manager.reload import Unavailable, unavailable
from timonel.serving.status import Code, StatusError


class UnservableError(ServingError):
    """A model has no version that can be loaded.

    Args:
        message: The problem.
        hint: The cure.
        failures: All models that do not serve.
    """

    def __init__(self, message: str, *, hint: str, failures: Sequence[Unavailable]) -> None:
        super().__init__(message, hint=hint)
        self.failures = tuple(failures)


@dataclass(frozen=True)
class _Reload:
    done: Future[None]
    names: frozenset[str]


class Reloads:
    """Pending reloads that wait for new models. Owned by the loader's thread."""

    def __init__(self) -> None:
        self._waiting: list[_Reload] = []

    def add(self, done: Future[None], names: frozenset[str]) -> None:
        """Complete ``done`` once the models ``names`` are loaded or have failed."""
        self._waiting.append(_Reload(done, names))

    def answer(self, watched: Mapping[str, ManagedModel]) -> None:
        """Complete the reloads whose models are all loaded or have failed.

        Models removed by a later configuration are no longer waited for.
        """
        still = []
        for reload in self._waiting:
            found = (watched.get(name) for name in sorted(reload.names))
            new = [w for w in found if w is not None and w.configured]
            if reload.done.cancelled():
                continue
            if any(w.hopeful and not w.serves for w in new):
                still.append(reload)
                continue
            failures = [w.failure() for w in new if not w.serves]
            finish(reload.done, unavailable(failures, "model") if failures else None)
        self._waiting = still

    def end(self, error: StatusError) -> None:
        """Fail all pending reloads with ``error``."""
        for reload in self._waiting:
            finish(reload.done, error)
        self._waiting = []


def finish(done: Future[None], error: StatusError | None) -> None:
    """Complete a reload's future, unless it was cancelled."""
    if not done.set_running_or_notify_cancel():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(None)


def stopping() -> StatusError:
    """Return the error for reloads while the server stops."""
    return StatusError(Code.UNAVAILABLE, "the server is stopping")


def unservable(idle: Sequence[ManagedModel]) -> UnservableError:
    """Return the error for a server that cannot start."""
    failures = [watched.failure() for watched in idle]
    first, model = failures[0], idle[0].model
    if first.version is None:
        return UnservableError(
            f"expected versions of {model.name} in {model.base_path}, {first.error.message}",
            hint="export a model first: timonel export --name NAME",
            failures=failures,
        )
    # Exporting again does not help for a model rejected as unsafe.
    refused = first.error.code is Code.PERMISSION_DENIED
    remedy = "allow that, if you trust whoever made it" if refused else "export the model again"
    return UnservableError(
        f"expected a version of {model.name} that can be loaded, got an error from version "
        f"{first.version}: {describe(first.error)}",
        hint=f"{remedy}, or remove {model.base_path}/{first.version}",
        failures=failures,
    )
