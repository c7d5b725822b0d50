"""Whether a new list of models may take the place of the present one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from timonel.serving.settings import TENSORFLOW, ModelSettings
from timonel.serving.status import Code, StatusError, invalid_argument


@dataclass(frozen=True)
class Unavailable:
    """A model of which no version became available.

    Args:
        name: The model.
        version: The version that failed last; none if there was nothing to load.
        error: Why.
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
    """Refuse a list of models that must not be applied.

    It is looked at as a whole before anything changes, so that what is refused leaves no trace.

    Args:
        present: The list in force.
        wanted: The list that shall replace it.
        available: The versions that serve now, by model.
        labels_may_wait: Whether a new label may name a version that does not serve. A label that
            is in use never moves to one that does not: its requests would fail.

    Raises:
        StatusError: The list is refused.
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
    """Refuse a list that names a model twice.

    Raises:
        StatusError: It does.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise invalid_argument(f"Illegal to list model {name} multiple times in config list")
        seen.add(name)


def unavailable(failures: Sequence[Unavailable], noun: str) -> StatusError:
    """Return the error of models that did not become available, in TensorFlow Serving's words.

    Args:
        failures: The models.
        noun: What they are called: ``servable`` at the start, ``model`` in a reload.
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
