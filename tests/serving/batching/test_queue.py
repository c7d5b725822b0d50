"""The pure queues, and the turns that they take, under every order of events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from timonel.serving.batching.queue import (
    NaturalQueue,
    ParameterQueue,
    QueuedRequest,
    QueueLimits,
    Queues,
)
from timonel.serving.status import Code, StatusError

LIMITS = QueueLimits(request_rows=8, batch_rows=8, timeout_s=1.0, batches=2)


def task_of(rows, arrived, deadline=None, key=()):
    task = QueuedRequest("s", {"x": np.zeros(rows)}, ["x"], arrived, deadline)
    task.rows, task.key = rows, key
    return task


def requests_of(batch):
    """Return the requests of a batch, as clients sent them."""
    return [each.whole or each for each in batch.requests]


def natural(limit=4):
    return NaturalQueue(lambda: limit)


def sizes(taken):
    return [each.rows for each in taken.requests]


def test_a_natural_batch_is_what_is_there_up_to_the_limit():
    queue = natural(limit=4)
    tasks = [task_of(rows, 0.0) for rows in (1, 2, 2, 9, 1)]
    for task in tasks:
        queue.add(task)
    assert queue.due_at() == 0.0
    assert [sizes(queue.take(0.0)) for _ in range(4)] == [[1, 2], [2], [9], [1]]
    assert queue.due_at() is None


def test_a_natural_batch_may_have_exactly_the_limit():
    queue = natural(limit=4)
    for rows in (1, 3, 1):
        queue.add(task_of(rows, 0.0))
    assert [sizes(queue.take(0.0)) for _ in range(2)] == [[1, 3], [1]]


def test_late_tasks_leave_before_they_are_computed():
    queue = natural()
    late, early = task_of(1, 0.0, deadline=1.0), task_of(1, 0.0, deadline=2.0)
    queue.add(late)
    queue.add(early)
    taken = queue.take(1.0)
    assert list(taken.late) == [late]
    assert requests_of(taken) == [early]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([None, 1.0, 2.0])), max_size=12),
    st.integers(0, 12),
)
def test_batches_are_cut_in_order_and_lose_nothing(given_tasks, limit):
    tasks = [task_of(rows, 0.0, deadline) for rows, deadline in given_tasks]
    queue, computed, late = natural(limit), [], []
    for task in tasks:
        queue.add(task)
    while queue.due_at() is not None:
        taken = queue.take(1.0)
        assert len(taken.requests) < 2 or sum(sizes(taken)) <= limit
        computed += requests_of(taken)
        late += taken.late
    assert computed == [task for task in tasks if task.deadline != 1.0]
    assert late == [task for task in tasks if task.deadline == 1.0]


def test_a_version_with_as_many_requests_as_may_wait_refuses_at_once():
    queues = Queues(lambda key: natural(1), limit=2)
    task = task_of(1, 0.0, key="a")
    queues.add(task)
    queues.add(task_of(1, 0.0, key="b"))
    with pytest.raises(StatusError, match="2 requests wait for this version already") as told:
        queues.add(task_of(1, 0.0, key="a"))
    assert told.value.code is Code.UNAVAILABLE
    queues.remove(task)
    queues.remove(task)
    queues.add(task_of(1, 0.0, key="b"))
    assert queues.waiting == 2


def test_an_open_batch_waits_for_its_time_or_until_it_is_full():
    queue = ParameterQueue(LIMITS)
    queue.add(task_of(3, 10.0))
    assert queue.due_at() == 11.0
    queue.add(task_of(5, 10.5))
    assert queue.due_at() == 10.0
    queue.add(task_of(1, 10.6))
    assert sizes(queue.take(10.6)) == [3, 5]
    assert queue.due_at() == 11.6


def test_a_task_that_does_not_fit_closes_the_batch():
    queue = ParameterQueue(LIMITS)
    queue.add(task_of(3, 0.0))
    queue.add(task_of(6, 0.0))
    assert queue.due_at() == 0.0
    assert sizes(queue.take(0.0)) == [3]


def test_too_large_a_task_and_a_full_queue_are_told_in_the_words_of_the_original():
    queue = ParameterQueue(LIMITS)
    with pytest.raises(StatusError) as told:
        queue.add(task_of(9, 0.0))
    assert told.value.code is Code.INVALID_ARGUMENT
    assert told.value.message == "Task size 9 is larger than maximum input batch size 8"
    queue.add(task_of(8, 0.0))
    queue.add(task_of(8, 0.0))
    with pytest.raises(StatusError) as told:
        queue.add(task_of(1, 0.0))
    assert told.value.code is Code.UNAVAILABLE
    assert told.value.message == (
        "The batch scheduling queue to which this task was submitted is full; currently 2 batches "
        "enqueued and max_enqueued_batches is 2"
    )


def test_a_large_task_fills_the_open_batch_and_then_its_own():
    queue = ParameterQueue(
        QueueLimits(request_rows=100, batch_rows=4, timeout_s=1.0, batches=4, split=True)
    )
    first, large = task_of(3, 0.0), task_of(10, 0.0)
    queue.add(first)
    queue.add(large)
    batches = [queue.take(0.0).requests for _ in range(4)]
    assert [[(each.whole is large, each.rows) for each in batch] for batch in batches] == [
        [(False, 3), (True, 1)],
        [(True, 4)],
        [(True, 4)],
        [(True, 1)],
    ]
    queue.add(task_of(16, 0.0))
    with pytest.raises(StatusError, match="task size is 1 but scheduling capacity is only 0 ") as e:
        queue.add(task_of(1, 0.0))
    assert e.value.code is Code.UNAVAILABLE
    queue.remove(large)
    assert queue.due_at() == 0.0


def test_a_batch_is_late_only_when_all_of_it_is():
    queue = ParameterQueue(LIMITS)
    tasks = [task_of(4, 0.0, deadline=1.0), task_of(4, 0.0, deadline=3.0)]
    for task in tasks * 2:
        queue.add(task)
    assert requests_of(queue.take(2.0)) == tasks
    taken = queue.take(3.0)
    assert not taken.requests
    assert list(taken.late) == tasks


def test_a_removed_task_takes_its_batch_along():
    queue = ParameterQueue(LIMITS)
    tasks = [task_of(8, 0.0), task_of(2, 0.0), task_of(3, 0.0)]
    for task in tasks:
        queue.add(task)
    queue.remove(tasks[0])
    queue.remove(tasks[1])
    assert queue.due_at() == 1.0
    assert requests_of(queue.take(1.0)) == tasks[2:]


def test_queues_take_turns():
    queues = Queues(lambda key: natural(limit=1))
    for key in "aaab":
        queues.add(task_of(1, 0.0, key=key))
    assert queues.due_at() == 0.0
    assert [queues.take(0.0).requests[0].key for _ in range(4)] == ["a", "b", "a", "a"]
    assert queues.take(0.0) is None
    assert queues.due_at() is None


def test_what_is_not_due_holds_up_nobody():
    queues = Queues(lambda key: ParameterQueue(LIMITS) if key == "slow" else natural())
    queues.add(task_of(1, 0.0, key="slow"))
    queues.add(task_of(1, 0.5, key="quick"))
    assert queues.take(0.5).requests[0].key == "quick"
    assert queues.take(0.5) is None
    assert queues.due_at() == 1.0
    assert queues.take(0.5, closing=True).requests[0].key == "slow"


class Events(RuleBasedStateMachine):
    """Whatever happens in whatever order, every task has exactly one end."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.queues = Queues(self.make, limit=12)
        self.limit = 4
        self.order = {}
        self.taken = {}
        self.ended = {}

    def make(self, name):
        if name in {"natural", "other"}:
            return NaturalQueue(lambda: self.limit)
        split = name == "split"
        return ParameterQueue(
            QueueLimits(
                request_rows=8, batch_rows=3 if split else 8, timeout_s=2.0, batches=4, split=split
            )
        )

    def end(self, task, how):
        assert task not in self.ended, f"{how} after {self.ended.get(task)}"
        self.ended[task] = how

    @rule(
        name=st.sampled_from(["natural", "other", "timed", "split"]),
        rows=st.integers(0, 9),
        patience=st.none() | st.sampled_from([0.5, 1.0, 5.0]),
    )
    def arrive(self, name, rows, patience):
        deadline = None if patience is None else self.now + patience
        task = task_of(rows, self.now, deadline, name)
        is_full = self.queues.waiting >= 12
        refusal = None
        try:
            self.queues.add(task)
            self.order.setdefault(name, []).append(task)
        except StatusError as error:
            refusal = error.code
        if is_full:
            assert refusal is Code.UNAVAILABLE
        elif name in {"timed", "split"} and rows > 8:
            assert refusal is Code.INVALID_ARGUMENT
        else:
            assert refusal is None or (refusal is Code.UNAVAILABLE and name in {"timed", "split"})

    @rule(closing=st.booleans())
    def take(self, closing):
        batch = self.queues.take(self.now, closing=closing)
        if batch is None:
            return
        name = (*batch.requests, *batch.late)[0].key
        self.check_batch(name, batch)
        waiting = self.order[name]
        for each in batch.late:
            task = each.whole or each
            if task in waiting:
                waiting.remove(task)
                self.end(task, "late")
        for each in batch.requests:
            task = each.whole or each
            if task in self.ended:
                continue
            # In the order of arrival: nobody before it still waits.
            assert task is waiting[0]
            self.taken[task] = self.taken.get(task, 0) + each.rows
            assert self.taken[task] <= task.rows
            if self.taken[task] == task.rows:
                waiting.pop(0)
                self.end(task, "computed")

    def check_batch(self, name, batch):
        rows = sum(sizes(batch))
        if name in {"natural", "other"}:
            assert rows <= self.limit or len(batch.requests) == 1
            assert not any(task.is_late(self.now) for task in batch.requests)
            assert all(task.is_late(self.now) for task in batch.late)
            return
        assert rows <= (3 if name == "split" else 8)
        if batch.requests:
            assert not all(task.is_late(self.now) for task in batch.requests)
        else:
            assert all(task.is_late(self.now) for task in batch.late)

    @precondition(lambda self: any(self.order.values()))
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(k for k, tasks in self.order.items() if tasks)))
        task = data.draw(st.sampled_from(self.order[name]))
        self.queues.remove(task)
        self.order[name].remove(task)
        self.end(task, "cancelled")

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(limit=st.integers(1, 8))
    def learn(self, limit):
        self.limit = limit

    @invariant()
    def what_waits_is_counted(self):
        waiting = sum(map(len, self.order.values()))
        assert self.queues.waiting >= waiting
        # Each part of a split task counts, also after the first one was late.
        assert self.queues.waiting == waiting or "split" in self.order

    @invariant()
    def what_can_be_computed_is_due(self):
        if any(self.order.get(name) for name in ("natural", "other")):
            assert self.queues.due_at() <= self.now

    def teardown(self):
        # At the end of the world everybody is answered.
        while self.queues.waiting:
            before = self.queues.waiting
            self.take(closing=True)
            assert self.queues.waiting < before
        assert not any(self.order.values())
        assert self.queues.due_at() is None


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    size=st.integers(1, 10),
)
def test_split_tasks_are_all_there_and_no_batch_is_too_large(rows, size):
    queue = ParameterQueue(
        QueueLimits(request_rows=30, batch_rows=size, timeout_s=0.0, batches=10**6, split=True)
    )
    tasks = [task_of(each, 0.0) for each in rows]
    for task in tasks:
        queue.add(task)
    covered = dict.fromkeys(tasks, 0)
    batches = []
    while queue.due_at() is not None:
        batch = queue.take(0.0)
        batches.append(sum(sizes(batch)))
        for task, each in zip(requests_of(batch), batch.requests, strict=True):
            covered[task] += each.rows
    assert covered == {task: task.rows for task in tasks}
    # Only the last one may have room left: splitting exists to fill them.
    assert all(each == size for each in batches[:-1])
