from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.schedule import ABSENT, InputShard, Schedule, permutation
from timonel.errors import InputError

RECORDS = st.integers(1, 300)
PER_REPLICA = st.integers(1, 12)
WORKERS = st.integers(1, 5)
REPLICAS = st.integers(1, 4)


def workers(
    records: int, batch: int, count: int, *, replicas: int = 1, shuffle: bool = False
) -> list[Schedule]:
    shards = [InputShard(index, count, replicas) for index in range(count)]
    return [Schedule(records, batch, shard, shuffle=shuffle, seed=7) for shard in shards]


def batches(schedule: Schedule, epoch: int = 0) -> list[list[int]]:
    return [[row for row in rows if row != ABSENT] for rows in schedule.rows(epoch).tolist()]


@given(RECORDS, PER_REPLICA, WORKERS, REPLICAS)
def test_evaluation_reads_each_record_exactly_once(
    records: int, per_replica: int, count: int, replicas: int
) -> None:
    batch = per_replica * count * replicas
    try:
        parts = workers(records, batch, count, replicas=replicas)
    except InputError:
        # Only what is too small for that many replicas may be refused.
        assert records < count * replicas * replicas
        return
    read = [row for part in parts for rows in batches(part) for row in rows]
    assert sorted(read) == list(range(records))
    assert len({part.steps for part in parts}) == 1
    for part in parts:
        assert part.width <= max(batch // count, replicas * replicas) + replicas
        for rows in batches(part):
            share = -(-len(rows) // replicas)
            assert len(rows) > share * (replicas - 1), "a strategy would give a replica nothing"


@given(RECORDS, PER_REPLICA, WORKERS, REPLICAS, st.integers(0, 3))
def test_training_takes_whole_batches_and_no_record_twice(
    records: int, per_replica: int, count: int, replicas: int, epoch: int
) -> None:
    total = count * replicas
    batch = per_replica * total
    if records < total or total == 1:
        return
    parts = workers(records, batch, count, replicas=replicas, shuffle=True)
    read = [row for part in parts for rows in batches(part, epoch) for row in rows]
    assert len(set(read)) == len(read)
    assert set(read) <= set(range(records))
    expected = records // batch * batch or records // total * total
    assert len(read) == expected
    assert all(part.steps == parts[0].steps > 0 for part in parts)
    assert all(len(rows) == part.width for part in parts for rows in batches(part, epoch))
    assert parts[0].width % replicas == 0


@given(RECORDS, PER_REPLICA, WORKERS, REPLICAS, st.booleans())
def test_batches_of_one_size(
    records: int, per_replica: int, count: int, replicas: int, shuffle: bool
) -> None:
    batch = per_replica * count * replicas
    try:
        padded, dropped = (
            [
                Schedule(records, batch, InputShard(i, count, replicas), shuffle, 7, last_batch)
                for i in range(count)
            ]
            for last_batch in ("pad", "drop")
        )
        short = workers(records, batch, count, replicas=replicas, shuffle=shuffle)
    except InputError:
        assert records < count * replicas * replicas
        return
    assert [batches(part) for part in padded] == [batches(part) for part in short]
    assert len({part.width for part in padded}) == 1
    assert padded[0].width >= per_replica * replicas
    assert all(len(rows) == part.width for part in dropped for rows in batches(part))
    read = [row for part in dropped for rows in batches(part) for row in rows]
    assert len(set(read)) == len(read) > records - max(batch, count * replicas)


@given(RECORDS, st.integers(1, 40), st.booleans())
def test_one_replica_reads_everything_in_batches_of_the_size_asked(
    records: int, batch: int, shuffle: bool
) -> None:
    (one,) = workers(records, batch, 1, shuffle=shuffle)
    sizes = [len(rows) for rows in batches(one)]
    assert sizes[:-1] == [batch] * (one.steps - 1)
    assert 1 <= sizes[-1] <= batch
    assert sorted(row for rows in batches(one) for row in rows) == list(range(records))


@given(RECORDS, PER_REPLICA, st.integers(2, 5), st.integers(0, 3))
def test_a_step_takes_the_same_records_with_any_number_of_workers(
    records: int, per_replica: int, count: int, epoch: int
) -> None:
    batch = per_replica * count
    if records < batch:
        return
    (alone,) = workers(records, batch, 1, shuffle=True)
    parts = [batches(part, epoch) for part in workers(records, batch, count, shuffle=True)]
    for step, rows in enumerate(batches(alone, epoch)[: records // batch]):
        assert [row for part in parts for row in part[step]] == rows


@given(RECORDS, st.integers(1, 40), st.integers(0, 20), st.booleans())
def test_going_on_at_a_step_gives_the_rest_of_the_epoch(
    records: int, batch: int, step: int, shuffle: bool
) -> None:
    (one,) = workers(records, batch, 1, shuffle=shuffle)
    assert one.rows(2, min(step, one.steps)).tolist() == one.rows(2).tolist()[step:]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {(s, e): tuple(permutation(50, s, e)) for s in range(3) for e in range(3)}
    assert len(set(orders.values())) == 9
    assert all(sorted(order) == list(range(50)) for order in orders.values())


def test_the_order_is_the_same_in_every_release() -> None:
    assert permutation(8, seed=0, epoch=0).tolist() == [3, 6, 5, 1, 2, 0, 7, 4]


def test_the_order_has_no_pattern() -> None:
    """Each record is at each place about equally often."""
    places = np.array([np.argsort(permutation(10, 0, epoch)) for epoch in range(2000)])
    counts = np.array([np.bincount(places[:, record], minlength=10) for record in range(10)])
    # 200 expected, deviation 13.4: six of them are never reached by chance.
    assert counts.min() > 120
    assert counts.max() < 280
    neighbours = np.array([permutation(10, 0, epoch)[:2] for epoch in range(2000)])
    pairs = np.bincount(neighbours[:, 0] * 10 + neighbours[:, 1], minlength=100)
    assert pairs[pairs > 0].min() > 4
    assert (pairs > 0).sum() == 90


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_that_replicas_cannot_share(batch: int) -> None:
    with pytest.raises(InputError, match=f"{batch} cannot be divided among 2 replicas"):
        Schedule(10, batch, InputShard(0, 2))


def test_fewer_records_than_replicas() -> None:
    with pytest.raises(InputError, match="3 records are too few for 4 replicas"):
        Schedule(3, 8, InputShard(0, 2, replicas=2))


def test_a_remainder_that_a_strategy_cannot_split() -> None:
    with pytest.raises(InputError, match="5 records are too few for 4 replicas"):
        Schedule(5, 8, InputShard(0, 1, replicas=4))


@pytest.mark.parametrize(("index", "count", "replicas"), [(2, 2, 1), (-1, 2, 1), (0, 1, 0)])
def test_a_shard_that_is_none(index: int, count: int, replicas: int) -> None:
    with pytest.raises(InputError, match="invalid input shard"):
        InputShard(index, count, replicas)
