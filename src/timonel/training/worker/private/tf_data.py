"""What a ``tf.data`` pipeline is made of, by TensorFlow's private names.

The classes of datasets are known by their names, without the underscore that most begin with. A
class that is not known is taken for one that may do anything. A test makes one of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from timonel.data import session
from timonel.training.worker.private import keras_fit

_ONE_TO_ONE = ("Map", "ParallelMap", "Prefetch", "Options")
"""An element of these is made of one element before."""

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
"""One pass over these begins one pass over what is before, at once."""

_RANDOM = ("Random", "Multinomial", "StatefulUniform", "TruncatedNormal", "ParameterizedTruncated")
_ENDLESS = -1
"""TensorFlow's ``INFINITE_CARDINALITY``."""
_CHANGING = ("Assign", "PyFunc")


@dataclass(frozen=True)
class Memory:
    """What a pipeline remembers from one pass to the next.

    Attributes:
        shuffles: How many shuffles draw a seed for each pass.
        streams: The positions of the loads that it comes from.
        must_be_read: A pass has to be read to leave it as it does.
        has_random_functions: Functions in it draw random numbers in no fixed order.
    """

    shuffles: int
    streams: tuple[session.Stream, ...]
    must_be_read: bool
    has_random_functions: bool

    @property
    def is_any(self) -> bool:
        """Whether it remembers anything."""
        return bool(self.shuffles or self.streams or self.must_be_read)


def memory_of(dataset: Any) -> Memory:
    """Return what a pipeline remembers."""
    found = list(_ancestors(dataset, direct=True))
    shuffles = [(node, direct) for node, direct in found if _reshuffles(node)]
    streams = [(stream, direct) for node, direct in found if (stream := _stream_of(node))]
    return Memory(
        shuffles=len(shuffles),
        streams=tuple(stream for stream, _ in streams),
        must_be_read=not all(direct for _, direct in [*shuffles, *streams]),
        has_random_functions=any(_draws(node) for node, _ in found),
    )


def stream_behind_maps(dataset: Any) -> session.Stream | None:
    """Return the stream of a load whose steps are the pipeline's, one to one."""
    while _kind(dataset) in _ONE_TO_ONE or _stream_of(dataset) is not None:
        stream = _stream_of(dataset)
        if stream is not None:
            return stream
        (dataset,) = keras_fit.dataset_inputs(dataset)
    return None


def size_of(dataset: Any) -> int | None:
    """Return the number of a pipeline's elements, if it has an end and that is known."""
    size = int(dataset.cardinality())
    return size if size >= 0 else None


def is_endless(dataset: Any) -> bool:
    """Tell whether a pipeline is known to have no end."""
    return int(dataset.cardinality()) == _ENDLESS


def _ancestors(dataset: Any, *, direct: bool) -> Iterator[tuple[Any, bool]]:
    """Yield a dataset and what it comes from, and whether its passes are those of the whole."""
    yield dataset, direct
    if _stream_of(dataset) is not None:
        return
    for parent in keras_fit.dataset_inputs(dataset):
        yield from _ancestors(parent, direct=direct and _kind(dataset) in _ONE_PASS)


def _kind(dataset: Any) -> str:
    return type(dataset).__name__.lstrip("_").removesuffix("Dataset")


def _stream_of(dataset: Any) -> session.Stream | None:
    return session.stream_of(dataset)


def _reshuffles(dataset: Any) -> bool:
    if _kind(dataset) == "Random":  # tf.data.Dataset.random draws a seed for each pass if asked to
        return bool(getattr(dataset, "_rerandomize", True))
    return _kind(dataset) == "Shuffle" and bool(getattr(dataset, "_reshuffle_each_iteration", True))


def _draws(dataset: Any) -> bool:
    """Tell whether a function of a dataset draws random numbers that a replay does not repeat."""
    functions: list[Any] = getattr(dataset, "_functions", list)()
    names = {
        operation.type
        for function in functions
        for operation in function.function.graph.get_operations()
    }
    if any(name.startswith(_CHANGING) for name in names):
        return _kind(dataset) != "FlatMap" and any(name.startswith("Assign") for name in names)
    # One after the other, each pass begins the same sequence; in parallel, it depends on timing.
    return _kind(dataset) == "ParallelMap" and any(name.startswith(_RANDOM) for name in names)
