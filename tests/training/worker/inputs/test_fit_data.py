from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from timonel.data import Dataset, load, load_registry
from timonel.training.worker.inputs.fit_data import batch_size_of, data_spec, find_loaded


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    load_registry.reset()


def test_a_load_is_found_through_what_the_user_does_to_it(dataset: Dataset) -> None:
    direct = load(dataset.uri, batch_size=8)
    found = find_loaded(direct)
    assert found is not None
    assert (found.record.digest, found.is_changed) == (dataset.digest, False)
    for harmless in (direct.prefetch(1), direct.cache(), direct.repeat(2), direct.take(1)):
        again = find_loaded(harmless)
        assert again is not None
        assert not again.is_changed
    mapped = find_loaded(direct.map(lambda x, y: (x * 2, y)).prefetch(1))
    assert mapped is not None
    assert mapped.is_changed
    assert mapped.record is found.record


def test_what_comes_from_no_load_or_from_several(dataset: Dataset) -> None:
    assert find_loaded(np.zeros(3)) is None
    assert find_loaded(tf.data.Dataset.range(3)) is None
    two = load(dataset.uri).concatenate(load(dataset.uri, split="validation"))
    assert find_loaded(two) is None


def test_the_batch_size_of_a_call(dataset: Dataset) -> None:
    assert batch_size_of({"x": load(dataset.uri, batch_size=8)}) == 8
    assert batch_size_of({"x": tf.data.Dataset.range(9).batch(4)}) == 4
    assert batch_size_of({"x": np.zeros((9, 2))}) == 32
    assert batch_size_of({"x": np.zeros((9, 2)), "batch_size": 5}) == 5
    assert batch_size_of({"x": (row for row in ())}) is None


def test_the_shape_of_a_call() -> None:
    assert data_spec(np.zeros((9, 2), np.float32)) == tf.TensorSpec([None, 2], tf.float32)
    pairs = tf.data.Dataset.from_tensor_slices((np.zeros((4, 2)), np.zeros(4))).batch(2)
    assert data_spec(pairs) == tf.TensorSpec([None, 2], tf.float64)
    assert data_spec(row for row in ()) is None
