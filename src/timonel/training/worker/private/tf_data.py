"""Analyse and observe ``tf.data`` pipelines, by TensorFlow's private names.

Dataset classes are known by their names, without the usual leading underscore. An unknown class may
do anything. A test creates one of each.
"""

from __future__ import annotations

import contextlib
import functools
import random
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.distribute import input_lib

from timonel.data import load_registry

Look = Callable[[list[Any]], object]

AVAILABILITY_FUNCTION = "_calculate_replicas_with_values"

_ONE_TO_ONE = ("Map", "ParallelMap", "Prefetch", "Options")
"""Datasets that make each element from one input element."""

KEEPS_ELEMENTS = (
    "Options",
    "Prefetch",
    "Cache",
    "Repeat",
    "Take",
    "Skip",
    "Shuffle",
    "Shard",
    "Model",
)
"""Datasets that change which elements come and when, not their content."""

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
"""Datasets whose passes each begin one pass over the input, at once."""

_RANDOM = ("Random", "Multinomial", "StatefulUniform", "TruncatedNormal", "ParameterizedTruncated")
_CALLS = ("StatefulPartitionedCall",)
_ENDLESS = -1
"""TensorFlow's ``INFINITE_CARDINALITY``."""
_CHANGING = ("Assign", "PyFunc", "EagerPyFunc")
_DRAWING = ("Rng", "Stateful")
"""Operations that draw from the variable of a ``tf.random.Generator``."""
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_HOPS = 5


@dataclass(frozen=True)
class Memory:
    """State that a pipeline keeps from one pass to the next."""

    shuffles: int  # that draw a seed for each pass
    streams: tuple[load_registry.Stream, ...]  # positions of the loads in the pipeline
    must_be_read: bool  # a pass must be read to advance the state
    has_random_functions: bool  # that draw random numbers in no fixed order


def memory_of(dataset: Any) -> Memory:
    """Return the state that a pipeline keeps between passes."""
    found = list(ancestors(dataset, lambda node: _kind(node) in _ONE_PASS))
    shuffles = [(node, direct) for node, direct in found if _reshuffles(node)]
    streams = [
        (stream, direct) for node, direct in found if (stream := load_registry.stream_of(node))
    ]
    return Memory(
        shuffles=len(shuffles),
        streams=tuple(stream for stream, _ in streams),
        must_be_read=not all(direct for _, direct in [*shuffles, *streams])
        or any(_reaches_generator(node) for node, _ in found),
        has_random_functions=any(_draws(node) for node, _ in found),
    )


def share_state(dataset: Any, other: Any) -> bool:
    """Whether two pipelines have a shuffle or a cache in common."""

    def found(pipeline: Any) -> set[int]:
        nodes = (node for node, _ in ancestors(pipeline, bool))
        return {id(node) for node in nodes if _reshuffles(node) or _kind(node) == "Cache"}

    return bool(found(dataset) & found(other))


def stream_behind_maps(dataset: Any) -> load_registry.Stream | None:
    """Return the stream whose steps are the pipeline's, one to one."""
    while _kind(dataset) in _ONE_TO_ONE or load_registry.stream_of(dataset) is not None:
        stream = load_registry.stream_of(dataset)
        if stream is not None:
            return stream
        (dataset,) = dataset_inputs(dataset)
    return None


def maps_of(dataset: Any) -> tuple[Any, list[Callable[..., Any]]] | None:
    """Return the load behind a pipeline, and the functions mapped over its batches, in order.

    None if no load is behind it, or other operations change its elements.
    """
    functions: list[Callable[..., Any]] = []
    while load_registry.stream_of(dataset) is None:
        parents = dataset_inputs(dataset)
        if len(parents) != 1:
            return None
        if _kind(dataset) in {"Map", "ParallelMap"}:
            functions.insert(0, dataset._map_func._func)
        elif not _kind(dataset).startswith(KEEPS_ELEMENTS):
            return None
        (dataset,) = parents
    return dataset, functions


def size_of(dataset: Any) -> int | None:
    """Return the number of a pipeline's elements; None if infinite or unknown."""
    size = int(dataset.cardinality())
    return size if size >= 0 else None


def is_endless(dataset: Any) -> bool:
    """Whether a pipeline is known to be infinite."""
    return int(dataset.cardinality()) == _ENDLESS


def ancestors(dataset: Any, passes: Callable[[Any], bool]) -> Iterator[tuple[Any, bool]]:
    """Yield a dataset and its ancestors up to loads, and whether all that follow each one pass."""
    yield dataset, True
    if load_registry.stream_of(dataset) is not None:
        return
    for parent in dataset_inputs(dataset):
        for found, all_pass in ancestors(parent, passes):
            yield found, all_pass and passes(dataset)


def _kind(dataset: Any) -> str:
    return type(dataset).__name__.lstrip("_").removesuffix("Dataset")


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
    if any(name.startswith(_DRAWING) and name not in _CALLS for name in names):
        return True
    if any(name.startswith(_CHANGING) for name in names):
        return _kind(dataset) != "FlatMap" and any(name.startswith("Assign") for name in names)
    # Sequentially, each pass repeats the same sequence; in parallel, it depends on timing.
    return _kind(dataset) == "ParallelMap" and any(name.startswith(_RANDOM) for name in names)


def _reaches_generator(dataset: Any) -> bool:
    """Whether Python functions of a dataset can draw from a generator that the script holds."""
    function = getattr(getattr(dataset, "_map_func", None), "_func", None)
    seen: set[int] = set()
    level = [function] if function is not None else []
    for _ in range(_HOPS):
        if any(isinstance(each, _GENERATORS) for each in level):
            return True
        seen.update(map(id, level))
        level = [part for each in level for part in _held(each) if id(part) not in seen]
    return False


def _held(thing: Any) -> list[Any]:
    """Return what a function, method or object of the script refers to."""
    code = getattr(thing, "__code__", None)
    held = [getattr(thing, "__self__", None), *(getattr(thing, "__defaults__", None) or ())]
    if isinstance(thing, functools.partial):
        held += [thing.func, *thing.args, *thing.keywords.values()]
    if code is not None and not (thing.__module__ or "").startswith("tensorflow."):
        held += [thing.__globals__.get(name) for name in code.co_names]
    for cell in getattr(thing, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty one
            held.append(cell.cell_contents)
    if not isinstance(thing, type | types.ModuleType):
        held += list(getattr(thing, "__dict__", {}).values())
    return [each for each in held if each is not None]


def without_tuner(dataset: Any) -> Any:
    """Return a dataset without tf.data's autotuner; AUTOTUNE then means one call per core."""
    # The iterators of a distributed dataset are destroyed at the end of each epoch and wait for the
    # tuner's thread, which sleeps for 10, 20, 40 s ... between its checks. Measured with TensorFlow
    # 2.21 and two workers: epochs of 10 s took 20 to 50 s.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def compute_batch_size(dataset: Any) -> int | None:
    """Return the batch size from a dataset's graph; None if unknown."""
    size = int(distribute.compute_batch_size(dataset))
    return size if size > 0 else None


def dataset_inputs(dataset: Any) -> list[Any]:
    """Return the input datasets of a dataset; empty for other values."""
    inputs = getattr(dataset, "_inputs", None)
    return list(inputs()) if callable(inputs) else []


def watch_batches(before: Look, after: Look) -> Callable[[], None]:
    """Observe when this worker and all workers have their batches; return how to undo it.

    For datasets that end, workers exchange before each step whether they have a batch, so a worker
    that gets its batch late delays the others there. ``before`` and ``after`` get tensors that are
    available once this worker has its batch, and all workers have reported theirs.
    """
    original = getattr(input_lib, AVAILABILITY_FUNCTION)

    @functools.wraps(original)
    def counted(strategy: Any, input_workers: Any, optional_list: Any) -> Any:
        before([found.has_value() for optionals in optional_list for found in optionals])
        count = original(strategy, input_workers, optional_list)
        after([count])
        return count

    setattr(input_lib, AVAILABILITY_FUNCTION, counted)
    return lambda: setattr(input_lib, AVAILABILITY_FUNCTION, original)
