"""The learned size of batches, and which signatures are batched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.serving.batching.policy import AdaptivePolicy, BatchTimes
from timonel.serving.batching.queue import ALONE
from timonel.serving.signature import Signature, TensorSpec


def learn(seconds_of, waiting, rounds=300, max_rows=1024, learned=None):
    """Run a closed loop: as many rows as the limit lets through."""
    learned = learned or BatchTimes()
    sizes = []
    for _ in range(rounds):
        rows = min(learned.best_size(max_rows), waiting)
        sizes.append(rows)
        learned = learned.updated(rows, seconds_of(rows))
    return learned, sizes


def test_batches_grow_while_a_row_gets_cheaper():
    _, sizes = learn(lambda rows: 1e-4 + 3e-6 * rows, waiting=10_000)
    assert sizes[0] == 1
    # Within a tenth of the cheapest row: from about 320 rows on.
    assert 256 <= sizes[-1] <= 1024


def test_nothing_is_put_together_where_it_does_not_pay():
    _, sizes = learn(lambda rows: 1e-2 * rows, waiting=100)
    assert sizes[-20:].count(1) >= 18
    assert [n for n, size in enumerate(sizes) if n >= 100 and size == 2] == [128, 192, 256]


def test_a_size_that_was_slow_once_gets_another_chance():
    learned, _ = learn(lambda rows: rows * (1.0 if rows < 3 else 2.0), waiting=64)
    assert learned.best_size(1024) <= 4
    _, sizes = learn(lambda rows: 1.0 + rows * 0.01, waiting=64, rounds=2000, learned=learned)
    assert sizes[-1] >= 32


def test_the_first_measurements_do_not_count():
    learned = BatchTimes()
    for seconds in (10.0, 1e-3):
        learned = learned.updated(1, seconds)
        assert learned.best_size(1024) == 1
    learned = learned.updated(1, 1e-3)
    assert learned.best_size(1024) == 4


def test_a_smaller_batch_is_preferred_up_to_a_tenth_slower():
    for row_s, best in ((1.1, 1), (1.2, 8)):
        learned = BatchTimes()
        for _ in range(3):
            learned = learned.updated(1, row_s).updated(2, 2.0)
        assert learned.best_size(1024) == best


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**22), st.floats(1e-9, 1e3, allow_nan=False)), max_size=200),
    st.integers(1, 5000),
)
def test_the_limit_is_one_at_least_and_never_above_the_largest(measurements, max_rows):
    learned = BatchTimes()
    for rows, seconds in measurements:
        assert 1 <= learned.best_size(max_rows) <= max_rows
        learned = learned.updated(rows, seconds)
    assert 1 <= learned.best_size(max_rows) <= max_rows


ROW = {"x": np.ones((1, 1), np.float32)}
SPEC = {"x": TensorSpec("x:0", "DT_FLOAT", (-1, 1))}
SIGNATURES = {name: Signature(name, SPEC, SPEC) for name in ("together", "alone")}


def test_only_eligible_signatures_are_batched():
    policy = AdaptivePolicy(SIGNATURES, ["together"])
    assert policy.place("together", ROW, ["x"])[1] != ALONE
    assert policy.place("alone", ROW, ["x"]) == (1, ALONE)


@pytest.mark.parametrize("shape", [(1,), (0, 1), (1, 1, 1)])
def test_inputs_of_another_rank_or_without_rows_are_computed_alone(shape):
    policy = AdaptivePolicy(SIGNATURES, ["together"])
    assert policy.place("together", {"x": np.ones(shape, np.float32)}, ["x"]) == (1, ALONE)


def test_rows_of_different_lengths_are_never_together():
    spec = {"x": TensorSpec("x:0", "DT_FLOAT", (-1, -1))}
    policy = AdaptivePolicy({"s": Signature("s", spec, spec)}, ["s"])
    placed = {policy.place("s", {"x": np.ones((2, n), np.float32)}, ["x"]) for n in (1, 2, 3)}
    assert [rows for rows, _ in placed] == [2, 2, 2]


def test_a_signature_whose_outputs_did_not_fit_is_not_batched_again():
    policy = AdaptivePolicy(SIGNATURES, ["together"])
    policy.misfit("together")
    policy.computed("together", 2, 1.0)
    assert policy.place("together", ROW, ["x"]) == (1, ALONE)
    assert policy.queue(("together", "x")).due_at() is None
