from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.training.worker.fit.agreement import INTERVAL_S, Agreement, TaskAction


def test_one_process_does_what_it_was_asked_for_at_once() -> None:
    agreement = Agreement(clock=lambda: 0.0)
    agreement.begin()
    assert agreement.at_boundary() == frozenset()
    agreement.ask(TaskAction.LEAVE)
    assert agreement.is_due()
    assert agreement.at_boundary([TaskAction.SAVE]) == {TaskAction.LEAVE, TaskAction.SAVE}
    assert agreement.at_boundary() == frozenset()


def test_others_ask_by_a_file(tmp_path: Path) -> None:
    now = [0.0]
    agreement = Agreement(requests=tmp_path / "requests", clock=lambda: now[0])
    assert agreement.at_boundary() == frozenset()
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "stop").touch()
    (tmp_path / "requests" / "anything").touch()
    assert agreement.at_boundary() == frozenset()
    now[0] += INTERVAL_S
    assert agreement.at_boundary() == {TaskAction.STOP}
    assert [path.name for path in (tmp_path / "requests").iterdir()] == ["anything"]


class Together:
    """Workers in threads, whose numbers are added up as a collective does it."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, self._add)
        self._given: dict[int, Sequence[float]] = {}
        self._sums: list[float] = []
        self.exchanges = 0

    def exchange_of(self, rank: int):  # type: ignore[no-untyped-def] # a closure of its class
        def exchange(numbers: Sequence[float]) -> Sequence[float]:
            self._given[rank] = numbers
            self._barrier.wait(10)
            return list(self._sums)

        return exchange

    def _add(self) -> None:
        self.exchanges += 1
        self._sums = [sum(column) for column in zip(*self._given.values(), strict=True)]


@settings(max_examples=15, deadline=None)
@given(
    asker=st.integers(0, 2),
    asked_at=st.integers(1, 60),
    step_s=st.sampled_from([0.01, 0.3, 5.0]),
)
def test_all_workers_leave_at_the_same_step(asker: int, asked_at: int, step_s: float) -> None:
    together, left = Together(3), {}

    def work(rank: int) -> None:
        now = [float(rank) * 100]  # clocks that differ
        agreement = Agreement(together.exchange_of(rank), is_chief=rank == 0, clock=lambda: now[0])
        agreement.begin()
        for step in range(1, 2000):
            now[0] += step_s
            if rank == asker and step == asked_at:
                agreement.ask(TaskAction.LEAVE)
            if TaskAction.LEAVE in agreement.at_boundary():
                left[rank] = step
                return

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(left) == 3
    assert len(set(left.values())) == 1
    waited = next(iter(left.values())) - asked_at
    # About a second, or one step where that takes longer; steps may double in between.
    assert 0 <= waited * step_s <= 4 * max(INTERVAL_S, step_s)
    assert together.exchanges <= 4 + next(iter(left.values())) * step_s / INTERVAL_S + 4


def test_a_change_of_pace_is_agreed_on_at_once() -> None:
    now = [0.0]
    alone = Together(1)
    agreement = Agreement(alone.exchange_of(0), clock=lambda: now[0])
    agreement.begin()
    for _ in range(2000):  # fast steps: the next exchange is hundreds of them away
        now[0] += 0.001
        agreement.at_boundary()
    agreement.ask(TaskAction.LEAVE)
    agreement.pace_changes()
    assert agreement.is_due()
    assert agreement.at_boundary() == {TaskAction.LEAVE}
