"""Validate a new list of models, and wait until its models are available."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future

from timonel.errors import ServingError
from timonel.serving.manager.managed_model import ManagedModel, Unavailable, cure, first_line
from timonel.serving.manager.model_config import check_names
from timonel.serving.settings.models import TENSORFLOW, ModelSettings
from timonel.serving.status import Code, StatusError, invalid_argument, without_folders


def admit(
    present: Sequence[ModelSettings],
    models: Sequence[ModelSettings],
    available: Mapping[str, Collection[int]],
    *,
    labels_may_wait: bool,
) -> None:
    """Reject a list of models that must not be applied. Pure.

    The whole list is checked before anything changes, so that a rejected list has no effect.

    Args:
        available: The serving versions by model.
        labels_may_wait: Whether a new label may name a version that does not serve. A label in use
            never moves to such a version, because its requests would fail.
    """
    check_names(model.name for model in models)
    before = {model.name: model for model in present}
    for model in models:
        old = before.get(model.name)
        if old is not None and old.platform != model.platform:
            raise invalid_argument(
                f"Illegal to change a model's platform. For model {model.name} platform was "
                f"{old.platform} and new platform requested is {model.platform}"
            )
    for model in models:
        old = before.get(model.name)
        _check_labels(
            model, old.labels if old else {}, available.get(model.name, ()), labels_may_wait
        )
    for model in models:
        if model.platform != TENSORFLOW:
            raise invalid_argument(
                f"Model {model.name} requests unsupported platform {model.platform}"
            )


def _check_labels(
    model: ModelSettings,
    before: Mapping[str, int],
    available: Collection[int],
    may_wait: bool,
) -> None:
    for label, version in model.labels.items():
        moves = before.get(label, version) != version
        if version not in available and (moves or not may_wait):
            raise StatusError(
                Code.FAILED_PRECONDITION,
                f"Request to assign label to version {version} of model {model.name}, which is "
                "not currently available for inference",
            )


class Reloads:
    """Pending reloads that wait for new models. Owned by the manager's thread."""

    def __init__(self) -> None:
        self._pending: list[tuple[Future[None], frozenset[str]]] = []

    def add(self, done: Future[None], names: frozenset[str]) -> None:
        """Complete ``done`` once the models ``names`` are loaded or have failed."""
        self._pending.append((done, names))

    def complete(self, managed: Mapping[str, ManagedModel]) -> None:
        """Complete the reloads whose models are all loaded, have failed or were removed since."""
        pending = []
        for done, names in self._pending:
            new = [m for name in sorted(names) if (m := managed.get(name)) and m.configured]
            if done.cancelled():
                continue
            if any(model.may_serve and not model.serves for model in new):
                pending.append((done, names))
                continue
            failures = [model.failure() for model in new if not model.serves]
            finish(done, _answer(failures) if failures else None)
        self._pending = pending

    def fail(self, error: StatusError) -> None:
        """Fail all pending reloads."""
        for done, _ in self._pending:
            finish(done, error)
        self._pending = []


def finish(done: Future[None], error: StatusError | None) -> None:
    """Complete a reload's future, unless it was cancelled."""
    if not done.set_running_or_notify_cancel():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(None)


class UnservableError(ServingError):
    """A model has no version that can be loaded."""

    def __init__(self, message: str, *, hint: str, failures: Sequence[Unavailable]) -> None:
        super().__init__(message, hint=hint)
        self.failures = tuple(failures)


def _answer(failures: Sequence[Unavailable]) -> StatusError:
    error = unavailable(failures, "model")
    return StatusError(error.code, without_folders(error.message))


def unservable(models: Sequence[ManagedModel]) -> UnservableError:
    """Return the error for a server that cannot start."""
    failures = [model.failure() for model in models]
    first, model = failures[0], models[0].model
    if first.version is None:
        # The source's error, such as a missing package, names its own cure.
        problem = models[0].problem
        return UnservableError(
            problem or f"Model {model.name} has no version to serve",
            hint="" if problem else f"publish one with 'timonel export --name {model.name}'",
            failures=failures,
        )
    return UnservableError(
        f"Version {first.version} of model {model.name} cannot be loaded: "
        f"{first_line(first.error)}",
        hint=cure(first.error),
        failures=failures,
    )


def unavailable(failures: Sequence[Unavailable], noun: str) -> StatusError:
    """Return the error for models without available version, as in TensorFlow Serving.

    Args:
        noun: What to call them: ``servable`` at the start, ``model`` in a reload.
    """
    listed = "".join(f"{{{failure}}}, " for failure in failures)
    return StatusError(
        Code.UNKNOWN, f"{len(failures)} {noun}(s) did not become available: {{{listed}}}"
    )
