"""The learned size of batches, and which signatures are batched."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.serving.batching.policy import APART, AdaptivePolicy, BatchTimes
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code, StatusError


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
    assert sum(size == 2 for size in sizes[100:]) >= 2  # tried again, rarely


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


class Picky(LoadedModel):
    """Refuses its first inputs, then returns them."""

    def __init__(self, refusals):
        self.refusals = refusals
        self.runs = 0
        spec = {"x": TensorSpec("x:0", "DT_FLOAT", (-1, 1))}
        self.signatures = {"s": Signature("s", spec, spec)}

    def run(self, signature, inputs, outputs=None):
        self.runs += 1
        if self.runs <= self.refusals:
            raise StatusError(Code.INVALID_ARGUMENT, "refused")
        return inputs

    def close(self):
        pass


ROW = {"x": np.ones((1, 1), np.float32)}


def is_batched(policy):
    return policy.place("s", ROW).group != APART


def test_three_requests_may_prove_that_rows_are_independent():
    # The load refuses one input, and two requests another.
    policy = AdaptivePolicy(Picky(refusals=3), AdaptiveBatching(), {})
    proven = []
    for _ in range(4):
        policy.ran_apart("s", ROW)
        proven.append(is_batched(policy))
    assert proven == [False, False, True, True]


def test_a_signature_without_a_proof_costs_no_more_runs():
    model = Picky(refusals=1000)
    policy = AdaptivePolicy(model, AdaptiveBatching(), {})
    at_load = model.runs
    for _ in range(9):
        policy.ran_apart("s", ROW)
    assert model.runs == at_load + 3
    assert not is_batched(policy)
