"""Whatever happens to workers, in whatever order, each piece counts exactly once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.training.worker.ps.ledger import (
    OVERDUE_FACTOR,
    OVERDUE_S,
    Attempt,
    Gradient,
    Ledger,
    Policy,
)


class World:
    """Workers that do what a list of numbers says, and an account of what counted."""

    def __init__(self, policy: Policy, workers: int, pieces: int) -> None:
        self.ledger = Ledger(policy)
        self.workers = workers
        self.pieces = pieces
        self.added = 0
        self.now = 0.0
        self.running: dict[int, Attempt] = {}
        self.updates: list[list[Gradient]] = []

    @property
    def is_done(self) -> bool:
        return self.added == self.pieces and self.ledger.is_idle

    def add(self) -> None:
        while self.added < self.pieces and self.ledger.unsettled < 2 * self.workers:
            self.added += 1
            self.ledger.add(self.added)

    def act(self, worker: int, *, is_lost: bool) -> None:
        self.now += 0.1
        attempt = self.running.pop(worker, None)
        if attempt is None:
            taken = self.ledger.take(worker, self.now)
            if taken is not None:
                self.running[worker] = taken
        elif is_lost:
            self.ledger.lose(attempt)
        else:
            self.ledger.finish(attempt, self.now)

    def apply(self) -> None:
        due = self.ledger.due()
        if due:
            self.ledger.apply(due)
            self.updates.append(due)
            self.add()


policies = st.one_of(
    st.builds(Policy, max_staleness=st.none() | st.integers(0, 3)),
    st.builds(Policy, needed=st.integers(1, 3), synchronous=st.just(True)),
    st.just(Policy(attempts=1)),
)


@settings(max_examples=200, deadline=None)
@given(
    policies,
    st.integers(1, 4),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=60),
)
def test_each_piece_counts_exactly_once(
    policy: Policy, spare: int, pieces: int, actions: list[tuple[int, bool, bool]]
) -> None:
    workers = policy.needed + spare - 1
    world = World(policy, workers, pieces)
    world.add()
    for worker, is_lost, applies in actions:
        world.act(worker % workers, is_lost=is_lost)
        if applies:
            world.apply()
    # From here on nobody is lost: it comes to an end.
    for turn in range(40 * (pieces + workers)):
        if world.is_done:
            break
        world.act(turn % workers, is_lost=False)
        world.apply()
    assert world.is_done
    counted = [gradient.attempt.piece for update in world.updates for gradient in update]
    assert sorted(counted) == list(range(1, pieces + 1))
    assert world.ledger.tally.updates == len(world.updates)
    for version, update in enumerate(world.updates):
        for gradient in update:
            assert gradient.staleness == version - gradient.attempt.version
            if policy.synchronous:
                assert gradient.attempt.version == version
                assert gradient.weight == 1
            elif policy.max_staleness is not None:
                assert gradient.staleness <= policy.max_staleness
                assert gradient.weight == 1 / max(1, gradient.staleness)
        if policy.synchronous:
            assert len({gradient.attempt.worker for gradient in update}) == len(update)


def test_without_backup_workers_updates_are_the_batches() -> None:
    ledger = Ledger(Policy(needed=2, synchronous=True))
    for piece in (1, 2):
        ledger.add(piece)
    first, second = ledger.take(0, 0.0), ledger.take(1, 0.0)
    assert first is not None
    assert second is not None
    assert ledger.finish(second, 0.1)
    assert ledger.due() == []
    assert ledger.take(1, 0.1) is None
    assert ledger.finish(first, 0.2)
    assert [gradient.attempt.piece for gradient in ledger.due()] == [2, 1]


def test_what_an_update_overtook_is_computed_by_another_at_once() -> None:
    ledger = Ledger(Policy(needed=1, synchronous=True))
    ledger.add(1)
    ledger.add(2)
    slow, fast = ledger.take(0, 0.0), ledger.take(1, 0.0)
    assert slow is not None
    assert fast is not None
    assert ledger.finish(fast, 0.1)
    ledger.apply(ledger.due())
    again = ledger.take(1, 0.1)
    assert again is not None
    assert (again.piece, again.version) == (1, 1)
    assert not ledger.finish(slow, 0.2)
    assert ledger.tally.dropped == 1
    assert ledger.finish(again, 0.3)


def test_a_dropped_gradient_is_computed_again() -> None:
    ledger = Ledger(Policy(max_staleness=0))
    ledger.add(1)
    ledger.add(2)
    one, two = ledger.take(0, 0.0), ledger.take(1, 0.0)
    assert one is not None
    assert two is not None
    ledger.finish(one, 0.1)
    ledger.apply(ledger.due())
    assert not ledger.finish(two, 0.1)
    again = ledger.take(0, 0.2)
    assert again is not None
    assert again.piece == 2


@pytest.mark.parametrize("age", [0.9, 1.1])
def test_the_last_piece_is_tried_elsewhere_when_it_is_overdue(age: float) -> None:
    ledger = Ledger()
    for piece in (1, 2):
        ledger.add(piece)
    quick, slow = ledger.take(0, 0.0), ledger.take(1, 0.0)
    assert quick is not None
    assert slow is not None
    ledger.finish(quick, 0.01)
    ledger.apply(ledger.due())
    patience = max(OVERDUE_S, OVERDUE_FACTOR * 0.01)
    waits = ledger.next_look(0.01)
    assert waits == pytest.approx(patience - 0.01)
    second = ledger.take(0, age * patience)
    assert (second is not None) == (age > 1)
    if second is not None:
        assert ledger.finish(second, age * patience + 0.01)
        ledger.apply(ledger.due())
        assert not ledger.finish(slow, 9.0)
        assert ledger.tally.repeated == 1
        assert ledger.is_idle


def test_one_attempt_at_a_time_while_warming_up() -> None:
    ledger = Ledger(Policy(attempts=1))
    ledger.add(1)
    ledger.add(2)
    only = ledger.take(0, 0.0)
    assert only is not None
    assert ledger.take(1, 0.0) is None
    ledger.finish(only, 0.1)
    ledger.apply(ledger.due())
    assert ledger.take(1, 0.1) is not None


def test_weights_fall_with_staleness() -> None:
    policy = Policy(max_staleness=2)
    assert [policy.weight(age) for age in range(4)] == [1, 1, 1 / 2, 0]
    assert replace(policy, max_staleness=None).weight(99) == 1
