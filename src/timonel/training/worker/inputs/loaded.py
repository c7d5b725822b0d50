"""Find the ``timonel.data.load`` call behind a model's training data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from timonel.data import load_registry

# Datasets that change which elements come and when, not their content.
_HARMLESS = ("Options", "Prefetch", "Cache", "Repeat", "Take", "Skip", "Shuffle", "Shard", "Model")


@dataclass(frozen=True)
class Loaded:
    """The load behind a dataset.

    Attributes:
        stream: The load's stream.
        is_changed: Whether the user has transformed the loaded data.
    """

    stream: load_registry.Stream
    is_changed: bool

    @property
    def record(self) -> load_registry.LoadRecord:
        """The loaded dataset and its preprocessing."""
        return self.stream.record


def find_loaded(dataset: Any) -> Loaded | None:
    """Return the load behind ``dataset``; None if it has none or several."""
    found = list(_ancestors(dataset, is_changed=False))
    return found[0] if len(found) == 1 else None


def _ancestors(dataset: Any, *, is_changed: bool) -> Iterator[Loaded]:
    from timonel.training.worker.private import keras_fit  # noqa: PLC0415 - imports TensorFlow

    try:
        stream = load_registry.stream_of(dataset)
    except TypeError:  # not hashable, like arrays
        return
    if stream is not None:
        yield Loaded(stream, is_changed)
        return
    changed = is_changed or not _is_harmless(dataset)
    for parent in keras_fit.dataset_inputs(dataset):
        yield from _ancestors(parent, is_changed=changed)


def _is_harmless(dataset: Any) -> bool:
    return type(dataset).__name__.lstrip("_").startswith(_HARMLESS)
