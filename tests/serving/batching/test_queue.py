"""The pure queues, and the scheduler over them, under every order of events."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from timonel.serving.batching.batcher import QueueKey, Scheduler
from timonel.serving.batching.queue import (
    BatchRequest,
    NaturalQueue,
    ParameterQueue,
    QueueCapacity,
    QueueLimits,
    take_rows,
)
from timonel.serving.status import Code, StatusError

LIMITS = QueueLimits(request_rows=8, batch_rows=8, timeout_s=1.0, batches=2)


def task_of(rows, arrived, deadline=None):
    return BatchRequest({}, [], rows, arrived, deadline)


def requests_of(batch):
    return [piece.request for piece in batch.pieces]


def key(name):
    return QueueKey(name, "s", (), ())


def natural(limit=4, room=100):
    return NaturalQueue(QueueCapacity(room), lambda: limit)


def sizes(taken):
    return [piece.rows for piece in taken.pieces]


def test_a_natural_batch_is_what_is_there_up_to_the_limit():
    queue = natural(limit=4)
    tasks = [task_of(rows, 0.0) for rows in (1, 2, 2, 9, 1)]
    for task in tasks:
        queue.add(task, 0.0)
    assert queue.due_at() == 0.0
    assert [sizes(queue.take(0.0)) for _ in range(4)] == [[1, 2], [2], [9], [1]]
    assert queue.due_at() is None


def test_a_natural_batch_may_have_exactly_the_limit():
    queue = natural(limit=4)
    for rows in (1, 3, 1):
        queue.add(task_of(rows, 0.0), 0.0)
    assert [sizes(queue.take(0.0)) for _ in range(2)] == [[1, 3], [1]]


def test_late_tasks_leave_before_they_are_computed():
    queue = natural()
    late, early = task_of(1, 0.0, deadline=1.0), task_of(1, 0.0, deadline=2.0)
    queue.add(late, 0.0)
    queue.add(early, 0.0)
    taken = queue.take(1.0)
    assert taken.late == (late,)
    assert requests_of(taken) == [early]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([None, 1.0, 2.0])), max_size=12),
    st.integers(0, 12),
)
def test_batches_are_cut_in_order_and_lose_nothing(given_tasks, limit):
    tasks = [task_of(rows, 0.0, deadline) for rows, deadline in given_tasks]
    left, computed, late = deque(tasks), [], []
    while left:
        taken = take_rows(left, limit, 1.0)
        assert len(taken.pieces) < 2 or sum(sizes(taken)) <= limit
        assert all(piece.rows == piece.request.rows for piece in taken.pieces)
        computed += requests_of(taken)
        late += taken.late
    assert computed == [task for task in tasks if task.deadline != 1.0]
    assert late == [task for task in tasks if task.deadline == 1.0]


def test_a_version_without_room_refuses_at_once():
    room = QueueCapacity(2)
    first, second = NaturalQueue(room, lambda: 1), NaturalQueue(room, lambda: 1)
    task = task_of(1, 0.0)
    first.add(task, 0.0)
    second.add(task_of(1, 0.0), 0.0)
    with pytest.raises(StatusError, match="queue to which this task was submitted is full") as told:
        first.add(task_of(1, 0.0), 0.0)
    assert told.value.code is Code.UNAVAILABLE
    first.remove(task)
    first.remove(task)
    second.add(task_of(1, 0.0), 0.0)
    assert room.used == 2


def test_an_open_batch_waits_for_its_time_or_until_it_is_full():
    queue = ParameterQueue(LIMITS)
    queue.add(task_of(3, 10.0), 10.0)
    assert queue.due_at() == 11.0
    queue.add(task_of(5, 10.5), 10.5)
    assert queue.due_at() == 10.0
    queue.add(task_of(1, 10.6), 10.6)
    assert sizes(queue.take(10.6)) == [3, 5]
    assert queue.due_at() == 11.6
    queue.close()
    assert queue.due_at() == 10.6


def test_a_task_that_does_not_fit_closes_the_batch():
    queue = ParameterQueue(LIMITS)
    queue.add(task_of(3, 0.0), 0.0)
    queue.add(task_of(6, 0.0), 0.0)
    assert queue.due_at() == 0.0
    assert sizes(queue.take(0.0)) == [3]


def test_too_large_a_task_and_a_full_queue_are_told_in_the_words_of_the_original():
    queue = ParameterQueue(LIMITS)
    with pytest.raises(StatusError) as told:
        queue.add(task_of(9, 0.0), 0.0)
    assert told.value.code is Code.INVALID_ARGUMENT
    assert told.value.message == "Task size 9 is larger than maximum input batch size 8"
    queue.add(task_of(8, 0.0), 0.0)
    queue.add(task_of(8, 0.0), 0.0)
    with pytest.raises(StatusError) as told:
        queue.add(task_of(1, 0.0), 0.0)
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
    queue.add(first, 0.0)
    queue.add(large, 0.0)
    batches = [queue.take(0.0).pieces for _ in range(4)]
    assert [[(p.request is large, p.start, p.stop) for p in batch] for batch in batches] == [
        [(False, 0, 3), (True, 0, 1)],
        [(True, 1, 5)],
        [(True, 5, 9)],
        [(True, 9, 10)],
    ]
    queue.add(task_of(16, 0.0), 0.0)
    with pytest.raises(StatusError, match="task size is 1 but scheduling capacity is only 0 ") as e:
        queue.add(task_of(1, 0.0), 0.0)
    assert e.value.code is Code.UNAVAILABLE
    queue.remove(large)
    assert queue.due_at() == 0.0


def test_a_batch_is_late_only_when_all_of_it_is():
    queue = ParameterQueue(LIMITS)
    tasks = [task_of(4, 0.0, deadline=1.0), task_of(4, 0.0, deadline=3.0)]
    for task in tasks * 2:
        queue.add(task, 0.0)
    assert requests_of(queue.take(2.0)) == tasks
    taken = queue.take(3.0)
    assert not taken.pieces
    assert taken.late == tuple(tasks)


def test_a_removed_task_takes_its_batch_along():
    queue = ParameterQueue(LIMITS)
    tasks = [task_of(8, 0.0), task_of(2, 0.0), task_of(3, 0.0)]
    for task in tasks:
        queue.add(task, 0.0)
    queue.remove(tasks[0])
    queue.remove(tasks[1])
    assert queue.due_at() == 1.0
    assert requests_of(queue.take(1.0)) == tasks[2:]


def test_queues_take_turns_and_slots_are_not_exceeded():
    scheduler = Scheduler(slots=2)
    for name in "aaab":
        scheduler.add(key(name), lambda: natural(limit=1), task_of(1, 0.0), 0.0)
    assert scheduler.next_due_at() == 0.0
    assert [scheduler.take(0.0)[0] for _ in range(2)] == [key("a"), key("b")]
    assert scheduler.take(0.0) is None
    assert scheduler.next_due_at() is None
    scheduler.release()
    assert scheduler.take(0.0)[0] == key("a")


def test_what_is_not_due_holds_up_nobody():
    scheduler = Scheduler(slots=1)
    scheduler.add(key("slow"), lambda: ParameterQueue(LIMITS), task_of(1, 0.0), 0.0)
    scheduler.add(key("quick"), natural, task_of(1, 0.5), 0.5)
    assert scheduler.take(0.5)[0] == key("quick")
    scheduler.release()
    assert scheduler.take(0.5) is None
    assert scheduler.next_due_at() == 1.0
    scheduler.close("slow")
    assert scheduler.take(0.5)[0] == key("slow")


class Events(RuleBasedStateMachine):
    """Whatever happens in whatever order, every task has exactly one end."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.scheduler = Scheduler(slots=2)
        self.room = QueueCapacity(12)
        self.limit = 4
        self.order = {}
        self.seen = {}
        self.ended = {}
        self.running = 0

    def make(self, name):
        if name in {"natural", "other"}:
            return lambda: NaturalQueue(self.room, lambda: self.limit)
        split = name == "split"
        return lambda: ParameterQueue(
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
        task = task_of(rows, self.now, None if patience is None else self.now + patience)
        refusal = None
        try:
            self.scheduler.add(key(name), self.make(name), task, self.now)
            self.order.setdefault(name, []).append(task)
        except StatusError as error:
            refusal = error.code
        if name in {"timed", "split"} and rows > 8:
            assert refusal is Code.INVALID_ARGUMENT
        else:
            assert refusal in {None, Code.UNAVAILABLE}

    @rule()
    def take(self):
        work = self.scheduler.take(self.now)
        if work is None:
            return
        (name, *_), batch = work
        waiting = self.order[name]
        self.check_batch(name, batch)
        for task in dict.fromkeys(batch.late):
            if self.seen.pop(task, 0) >= 0 and task in waiting:
                waiting.remove(task)
                self.end(task, "late")
        self.running += bool(batch.pieces)
        for piece in batch.pieces:
            if piece.request in self.ended:
                continue
            # In the order of arrival: nobody before it still waits.
            assert piece.request is waiting[0]
            assert piece.start == self.seen.get(piece.request, 0)
            self.seen[piece.request] = piece.stop
            if piece.stop == piece.request.rows:
                waiting.pop(0)
                self.end(piece.request, "computed")

    def check_batch(self, name, batch):
        rows = sum(piece.rows for piece in batch.pieces)
        if name in {"natural", "other"}:
            assert rows <= self.limit or len(batch.pieces) == 1
            assert not any(task.is_late(self.now) for task in requests_of(batch))
            assert all(task.is_late(self.now) for task in batch.late)
            return
        assert rows <= (3 if name == "split" else 8)
        if batch.pieces:
            assert not all(task.is_late(self.now) for task in requests_of(batch))
        else:
            assert all(task.is_late(self.now) for task in batch.late)

    @precondition(lambda self: self.running)
    @rule()
    def finish(self):
        self.running -= 1
        self.scheduler.release()

    @precondition(lambda self: any(self.order.values()))
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(k for k, tasks in self.order.items() if tasks)))
        task = data.draw(st.sampled_from(self.order[name]))
        self.scheduler.remove(key(name), task)
        self.order[name].remove(task)
        self.end(task, "cancelled")

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(limit=st.integers(1, 8))
    def learn(self, limit):
        self.limit = limit

    @invariant()
    def slots_hold(self):
        assert self.running == self.scheduler.running <= self.scheduler.slots

    @invariant()
    def the_room_is_counted(self):
        waiting = sum(len(self.order.get(name, [])) for name in ("natural", "other"))
        assert self.room.used == waiting <= self.room.limit

    @invariant()
    def nothing_is_due_while_a_slot_idles_unseen(self):
        waiting = any(self.order.get(name) for name in ("natural", "other"))
        if waiting and self.running < self.scheduler.slots:
            assert self.scheduler.next_due_at() <= self.now

    def teardown(self):
        # At the end of the world everybody is answered.
        for name in self.order:
            self.scheduler.close(name)
        self.now += 100
        while any(self.order.values()):
            before = sum(map(len, self.order.values()))
            for _ in range(self.running):
                self.finish()
            for _ in range(12):
                self.take()
                for _ in range(self.running):
                    self.finish()
            assert sum(map(len, self.order.values())) < before


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
        queue.add(task, 0.0)
    covered = dict.fromkeys(tasks, 0)
    batches = []
    while queue.due_at() is not None:
        pieces = queue.take(0.0).pieces
        batches.append(sum(piece.rows for piece in pieces))
        for piece in pieces:
            assert piece.start == covered[piece.request]
            covered[piece.request] = piece.stop
    assert covered == {task: task.rows for task in tasks}
    # Only the last one may have room left: splitting exists to fill them.
    assert all(each == size for each in batches[:-1])
