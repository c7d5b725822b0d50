"""Batches have the structure that Keras gives them, whole and divided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras.src.trainers.data_adapters import get_data_adapter

from timonel.training.worker.inputs.sharding import Share, _split
from timonel.training.worker.state.arrays import lists_to_tuples
from timonel.training.worker.state.sources import feed_of


class Pair(NamedTuple):
    left: Any
    right: Any


def column(number: int) -> Any:
    return (np.arange(10, dtype="float32") * 10**number)[:, None]


a, b, c, y, z, v, w = map(column, range(7))
INPUTS = [a, [a, b], (a, b), (a,), {"a": a, "b": b}, [a, [b, c]], {"a": [a, b], "c": c}, Pair(a, b)]
DATA: list[tuple[Any, ...]] = [
    *((x,) for x in INPUTS),
    ([a, [b, c]], y),
    (Pair(a, b), y),
    ([a, None], y),
    ([a, b], y, v),
    ([a, b], [y, z]),
    ([a, b], {"y": y, "z": z}),
    ([a, b], [y, z], v),
    ([a, b], [y, z], [v, w]),
    ({"a": a}, {"y": y, "z": z}, {"y": v, "z": w}),
]
WITHOUT_NONE = [data for data in DATA if all(leaf is not None for leaf in tf.nest.flatten(data))]


def batch(data: Any, number: int) -> Any:
    return tf.nest.map_structure(lambda value: value[4 * number : 4 * number + 4], data)


class Batches(keras.utils.PyDataset):  # type: ignore[misc] # Keras has no types
    def __init__(self, data: Any) -> None:
        super().__init__()
        self._data = data

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        return batch(self._data, number)


def elements(dataset: Any) -> list[Any]:
    untuned = tf.data.Options()
    untuned.autotune.enabled = False
    return list(dataset.take(3).with_options(untuned))


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        tf.nest.assert_same_structure(ours, theirs)
        for one, other in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
            assert (one is None) is (other is None)
            assert one is None or np.array_equal(one, other)


def given_by_keras(*data: Any, **options: Any) -> list[Any]:
    return elements(get_data_adapter(*data, shuffle=False, **options).get_tf_dataset())


@pytest.mark.parametrize(
    ("data", "flavour"),
    [*((data, keras) for data in DATA), *((data, tf_keras) for data in DATA[:3])],
)
def test_arrays(data: tuple[Any, ...], flavour: Any) -> None:
    arguments = dict(zip(("x", "y", "sample_weight"), data, strict=False), shuffle=False)
    arguments["batch_size"] = 4
    feed_of(flavour, arguments, 0, resumes=False)
    assert_same(elements(arguments["x"]), given_by_keras(*data, batch_size=4))


@pytest.mark.parametrize("data", WITHOUT_NONE[1::2])
def test_generators_and_sequences(data: tuple[Any, ...]) -> None:
    data = lists_to_tuples(data)

    def generator() -> Iterator[Any]:
        return (batch(data, number) for number in range(3))

    for made in (generator, lambda: Batches(data)):
        arguments = {"x": made(), "shuffle": False}
        feed_of(keras, arguments, 0, resumes=False)
        assert_same(elements(arguments["x"]), given_by_keras(made()))


@pytest.mark.parametrize("fill", [True, False])
@pytest.mark.parametrize("data", [*DATA[::2], *INPUTS[::2]])
def test_parts(data: Any, fill: bool) -> None:
    dataset = tf.data.Dataset.from_tensors(lists_to_tuples(data)).repeat(3)
    found = [elements(_split(dataset, Share((part,), 2), fill=fill)) for part in range(2)]
    together = elements(_split(dataset, Share((0, 1), 2), fill=fill))
    parts = [
        tf.nest.map_structure(
            lambda *values: None if values[0] is None else np.concatenate(values), *pieces
        )
        for pieces in zip(*found, strict=True)
    ]
    assert_same(parts, elements(dataset))
    assert_same(together, [found[0][0], found[1][0], found[0][1]])
