"""Analyse ``tf.data`` pipelines, by TensorFlow's private names.

Dataset classes are known by their names, without the usual leading underscore. An unknown class may
do anything. A test creates one of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from timonel.data import load_registry
from timonel.training.worker.private import keras_fit

_ONE_TO_ONE = ("Map", "ParallelMap", "Prefetch", "Options")
"""Datasets that make each element from one input element."""

_ONE_PASS = (
    *_ONE_TO_ONE,
    "Batch",
    "ParallelBatch",
    "PaddedBatch",
    "Filter",
    "Random",
    "Rebatch",
    "Shard",
    "Shuffle",
    "Skip",
    "Take",
    "TakeWhile",
    "Unbatch",
    "Zip",
)
"""Datasets whose passes each begin one pass over the input.

That pass begins at once.
"""

_RANDOM = ("Random", "Multinomial", "StatefulUniform", "TruncatedNormal", "ParameterizedTruncated")
_ENDLESS = -1
"""TensorFlow's ``INFINITE_CARDINALITY``."""
_CHANGING = ("Assign", "PyFunc")


@dataclass(frozen=True)
class Memory:
    """State that a pipeline keeps from one pass to the next.

    Attributes:
        shuffles: Number of shuffles that draw a seed for each pass.
        streams: Positions of the loads in the pipeline.
        must_be_read: Whether a pass must be read to advance the state.
        has_random_functions: Whether its functions draw random numbers in no fixed order.
    """

    shuffles: int
    streams: tuple[load_registry.Stream, ...]
    must_be_read: bool
    has_random_functions: bool

    @property
    def is_any(self) -> bool:
        """Whether the pipeline keeps any state."""
        return bool(self.shuffles or self.streams or self.must_be_read)


def memory_of(dataset: Any) -> Memory:
    """Return the state that a pipeline keeps between passes."""
    found = list(_ancestors(dataset, direct=True))
    shuffles = [(node, direct) for node, direct in found if _reshuffles(node)]
    streams = [(stream, direct) for node, direct in found if (stream := _stream_of(node))]
    return Memory(
        shuffles=len(shuffles),
        streams=tuple(stream for stream, _ in streams),
        must_be_read=not all(direct for _, direct in [*shuffles, *streams]),
        has_random_functions=any(_draws(node) for node, _ in found),
    )


def stream_behind_maps(dataset: Any) -> load_registry.Stream | None:
    """Return the stream whose steps are the pipeline's, one to one."""
    while _kind(dataset) in _ONE_TO_ONE or _stream_of(dataset) is not None:
        stream = _stream_of(dataset)
        if stream is not None:
            return stream
        (dataset,) = keras_fit.dataset_inputs(dataset)
    return None


def size_of(dataset: Any) -> int | None:
    """Return the number of a pipeline's elements; None if infinite or unknown."""
    size = int(dataset.cardinality())
    return size if size >= 0 else None


def is_endless(dataset: Any) -> bool:
    """Whether a pipeline is known to be infinite."""
    return int(dataset.cardinality()) == _ENDLESS


def _ancestors(dataset: Any, *, direct: bool) -> Iterator[tuple[Any, bool]]:
    """Yield a dataset and its ancestors, with flags.

    The flag tells whether its passes are those of the whole.
    """
    yield dataset, direct
    if _stream_of(dataset) is not None:
        return
    for parent in keras_fit.dataset_inputs(dataset):
        yield from _ancestors(parent, direct=direct and _kind(dataset) in _ONE_PASS)


def _kind(dataset: Any) -> str:
    return type(dataset).__name__.lstrip("_").removesuffix("Dataset")


def _stream_of(dataset: Any) -> load_registry.Stream | None:
    return load_registry.stream_of(dataset)


def _reshuffles(dataset: Any) -> bool:
    if _kind(dataset) == "Random":  # tf.data.Dataset.random can draw a seed for each pass
        return bool(getattr(dataset, "_rerandomize", True))
    return _kind(dataset) == "Shuffle" and bool(getattr(dataset, "_reshuffle_each_iteration", True))


def _draws(dataset: Any) -> bool:
    """Whether functions draw random numbers that a replay does not repeat."""
    functions: list[Any] = getattr(dataset, "_functions", list)()
    names = {
        operation.type
        for function in functions
        for operation in function.function.graph.get_operations()
    }
    if any(name.startswith(_CHANGING) for name in names):
        return _kind(dataset) != "FlatMap" and any(name.startswith("Assign") for name in names)
    # Sequentially, each pass repeats the same sequence; in parallel, it depends on timing.
    return _kind(dataset) == "ParallelMap" and any(name.startswith(_RANDOM) for name in names)
