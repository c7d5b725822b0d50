from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.worker.inputs import sharding
from timonel.training.worker.inputs.sharding import (
    Share,
    _has_rows,
    _split,
    bounds,
    require_equal_rows,
    share_of,
)


@given(st.integers(0, 500), st.integers(1, 16))
def test_the_parts_of_a_batch_are_the_batch(rows: int, total: int) -> None:
    parts = [bounds(rows, part, total) for part in range(total)]
    assert parts[0][0] == 0
    assert parts[-1][1] == rows
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    sizes = [end - begin for begin, end in parts]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 5), st.integers(1, 4))
def test_every_part_goes_to_one_replica(workers: int, local: int) -> None:
    replicas = workers * local
    shares = [
        share_of(worker, workers=workers, replicas=replicas, sharded=False)
        for worker in range(workers)
    ]
    assert sorted(part for share in shares for part in share.parts) == list(range(replicas))
    assert {share.total for share in shares} == {replicas}


def test_a_dataset_that_is_sharded_is_dealt_out_among_local_replicas_only() -> None:
    assert share_of(1, workers=2, replicas=2, sharded=True) == Share((0,), 1)
    assert share_of(1, workers=2, replicas=4, sharded=True) == Share((0, 1), 2)


def batches(rows: int, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(rows).map(lambda x: (x, {"y": -x})).batch(size)


@pytest.mark.parametrize("fill", [True, False])
def test_what_each_replica_gets(fill: bool) -> None:
    whole = batches(9, 4)
    found = [_split(whole, Share((part,), 2), fill=fill) for part in range(2)]
    rows = [[x.numpy().tolist() for x, _ in dataset] for dataset in found]
    last = [[8], [8, 8, 8]] if fill else [[], [8]]
    assert rows == [[[0, 1], [4, 5], last[0]], [[2, 3], [6, 7], last[1]]]
    assert all(int(dataset.cardinality()) == 3 for dataset in found)
    assert all(
        x.numpy().tolist() == (-y["y"]).numpy().tolist() for dataset in found for x, y in dataset
    )


def test_a_batch_of_fewer_rows_than_replicas_is_trained_on_as_a_whole_by_each() -> None:
    found = [_split(batches(2, 4), Share((part,), 3), fill=True) for part in range(3)]
    rows = [[x.numpy().tolist() for x, _ in dataset] for dataset in found]
    assert rows == [[[0, 1]], [[0, 1] * 4], [[0, 1] * 4]]


def test_several_replicas_of_one_worker_get_their_parts_in_turn() -> None:
    found = _split(batches(8, 4), Share((0, 2), 4), fill=True)
    assert [x.numpy().tolist() for x, _ in found] == [[0], [2], [4], [6]]


def test_static_shapes_stay_static() -> None:
    whole = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
    assert _split(whole, Share((1,), 2), fill=True).element_spec.shape == (2,)


def uneven(rows: int | None) -> tf.data.Dataset:
    """Return batches of queries with another number of rows to compare them with."""
    spec = {name: tf.TensorSpec([rows and size], tf.int64) for name, size in (("q", 4), ("s", 3))}
    batch = {"q": np.arange(4), "s": np.arange(3)}
    return tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=spec)


def test_a_batch_whose_tensors_differ_in_rows_is_refused() -> None:
    with pytest.raises(SpecError, match=r"different numbers of rows.*: 4, 3"):
        _split(uneven(4), Share((0,), 2), fill=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers of rows"):
        list(_split(uneven(None), Share((0,), 2), fill=True))
    with pytest.raises(SpecError, match=r"different numbers of rows.*: 4, 3"):
        require_equal_rows({"q": tf.zeros(4), "s": tf.zeros(3)})


def test_what_has_no_rows() -> None:
    assert _has_rows(batches(4, 2).element_spec)
    assert not _has_rows(tf.data.Dataset.range(4).element_spec)
    assert not _has_rows(tf.TensorSpec([], tf.int64))


def test_a_distributed_dataset_has_no_tuner_that_holds_up_the_end_of_an_epoch() -> None:
    seen = []

    class Strategy:
        def distribute_datasets_from_function(self, local: Any) -> Any:
            context = tf.distribute.InputContext(
                num_input_pipelines=2, input_pipeline_id=0, num_replicas_in_sync=2
            )
            seen.append(local(context))
            return seen[0]

    dataset = tf.data.Dataset.from_tensor_slices(np.arange(8)).batch(4)
    sharding.distribute(Strategy(), dataset, sharded=False, fill=True)
    assert seen[0].options().autotune.enabled is False
