"""Validate a new list of models against the present one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from timonel.serving.settings import TENSORFLOW, ModelSettings
from timonel.serving.status import Code, StatusError, invalid_argument


@dataclass(frozen=True)
class Unavailable:
    """A model of which no version became available.

    Args:
        name: The model's name.
        version: The version that failed last; None if no version was found.
        error: The reason.
    """

    name: str
    version: int | None
    error: StatusError

    def __str__(self) -> str:
        version = "" if self.version is None else f" version: {self.version}"
        return f"{{name: {self.name}{version}}} due to error: {self.error}"


def admit(
    present: Sequence[ModelSettings],
    wanted: Sequence[ModelSettings],
    available: Mapping[str, Collection[int]],
    *,
    labels_may_wait: bool,
) -> None:
    """Reject a list of models that must not be applied.

    The whole list is checked before anything changes, so that a rejected list has no effect.

    Args:
        present: The present list.
        wanted: The list to replace it with.
        available: The serving versions by model.
        labels_may_wait: Whether a new label may name a version that does not serve. A label in use
            never moves to such a version, because its requests would fail.

    Raises:
        StatusError: The list is rejected.
    """
    check_names([model.name for model in wanted])
    before = {model.name: model for model in present}
    for model in wanted:
        old = before.get(model.name)
        if old is not None and old.platform != model.platform:
            raise invalid_argument(
                f"Illegal to change a model's platform. For model {model.name} platform was "
                f"{old.platform} and new platform requested is {model.platform}"
            )
    for model in wanted:
        old = before.get(model.name)
        _check_labels(
            model, old.labels if old else {}, available.get(model.name, ()), labels_may_wait
        )
    for model in wanted:
        if model.platform != TENSORFLOW:
            raise invalid_argument(
                f"Model {model.name} requests unsupported platform {model.platform}"
            )


def check_names(names: Iterable[str]) -> None:
    """Reject a list that names a model twice.

    Raises:
        StatusError: A name is repeated.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise invalid_argument(f"Illegal to list model {name} multiple times in config list")
        seen.add(name)


def unavailable(failures: Sequence[Unavailable], noun: str) -> StatusError:
    """Return the error for models without available version, as in TensorFlow Serving.

    Args:
        failures: The models.
        noun: What to call them: ``servable`` at the start, ``model`` in a reload.
    """
    listed = "".join(f"{{{failure}}}, " for failure in failures)
    return StatusError(
        Code.UNKNOWN, f"{len(failures)} {noun}(s) did not become available: {{{listed}}}"
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
