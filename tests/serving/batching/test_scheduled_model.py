"""The shell: threads, futures, and a model that takes its time and sometimes fails."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.freeing import freed_by_reference_counts
from tests.waiting import until
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings.batching import AdaptiveBatching, BatchingParameters
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code, HungError, NotStartedError, StatusError

WAIT_S = 30


class Slow(LoadedModel):
    """Doubles; holds up what begins with 7 until told, refuses negative rows."""

    def __init__(self, delay_s=0.0):
        self.delay_s = delay_s
        self.batches = []
        self.threads = []
        self.holding = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.closed = threading.Event()
        self.most = self.now = 0
        self.lock = threading.Lock()
        spec = TensorSpec("x:0", "DT_FLOAT", (-1, 1))
        fixed = TensorSpec("x:0", "DT_FLOAT", (2,))
        both = {
            "y": TensorSpec("y:0", "DT_FLOAT", (-1, 1)),
            "n": TensorSpec("n", "DT_INT64", (-1,)),
        }
        self.signatures = {
            "s": Signature("s", {"x": spec}, both),
            "fixed": Signature("fixed", {"x": fixed}, {"y": fixed}),
            "none": Signature("none", {}, both),
        }

    def run(self, signature, inputs, outputs=None):
        assert not self.closed.is_set(), "run after close"
        x = inputs["x"]
        with self.lock:
            self.batches.append(len(x))
            self.threads.append(threading.current_thread().name)
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            if x.size and x.flat[0] == 7:
                self.holding.release()
                assert self.go_on.wait(WAIT_S)
            time.sleep(self.delay_s)
            if (x < 0).any():
                raise StatusError(Code.INVALID_ARGUMENT, "negative")
            answers = {"y": 2 * x, "n": np.arange(len(x))}
            return {name: answers[name] for name in outputs or ["y", "n"]}
        finally:
            with self.lock:
                self.now -= 1

    def close(self):
        assert not self.closed.is_set(), "closed twice"
        self.closed.set()


def rows(*values):
    return {"x": np.array(values, np.float32).reshape(-1, 1)}


def code_of(call):
    with pytest.raises(StatusError) as told:
        call()
    return told.value.code


@pytest.fixture
def slow():
    return Slow()


@pytest.fixture
def wrapped(slow):
    """One slot, and batches of any size from the start."""
    observed = []
    model = scheduled(
        slow, AdaptiveBatching(assumed=("*",), slots=1, max_queued=8), observed.append
    )
    model.observed = observed
    learn(model)
    slow.batches.clear()
    observed.clear()
    yield model
    slow.go_on.set()
    model.close()
    assert slow.closed.is_set()
    assert not [t for t in threading.enumerate() if t.name.startswith("batch_threads")]


def learn(model):
    """Have batches of up to 256 rows allowed, as these are the cheapest measured."""
    for _ in range(3):
        model.run("s", rows(*range(8, 72)))


def occupy(wrapped, slow):
    """Have the only slot taken by a batch that waits."""
    first = wrapped.submit("s", rows(7))
    assert slow.holding.acquire(timeout=WAIT_S)
    return first


def test_a_caller_may_wait(wrapped, slow):
    assert wrapped.run("s", rows(1, 2))["y"].tolist() == [[2], [4]]
    assert slow.batches == [2]


def test_requests_that_wait_for_a_batch_are_queued(wrapped, slow):
    first = occupy(wrapped, slow)
    assert wrapped.queued == 0
    others = [wrapped.submit("s", rows(n)) for n in range(3)]
    assert wrapped.queued == 3
    assert others.pop().cancel()
    assert wrapped.queued == 2
    slow.go_on.set()
    for each in (first, *others):
        each.result(WAIT_S)
    assert wrapped.queued == 0


def test_what_arrives_meanwhile_is_the_next_batch(wrapped, slow):
    first = occupy(wrapped, slow)
    others = [wrapped.submit("s", rows(n, n + 1), ["y"]) for n in (1, 3, 5)]
    slow.go_on.set()
    assert first.result(WAIT_S)["y"].tolist() == [[14]]
    assert [f.result(WAIT_S)["y"].ravel().tolist() for f in others] == [[2, 4], [6, 8], [10, 12]]
    assert all(f.result().keys() == {"y"} for f in others)
    assert slow.batches == [1, 6]
    wrapped.submit("s", rows(0)).result(WAIT_S)
    observed = wrapped.observed[1]
    assert (observed.rows, observed.padded_rows, observed.signature) == (6, 0, "s")
    assert len(observed.queue_s) == 3
    assert observed.compute_s >= 0
    assert not observed.failed


def test_an_answer_tells_how_long_the_model_took(wrapped, slow):
    slow.delay_s = 0.01
    occupy(wrapped, slow)
    together = [wrapped.submit("s", rows(n)) for n in (1, 2)]
    apart = wrapped.submit("fixed", {"x": np.ones(2, np.float32)})
    late = wrapped.submit("s", rows(3), None, time.monotonic())
    slow.go_on.set()
    for future in (*together, apart):
        future.result(WAIT_S)
        assert 0.01 <= future.compute_s < WAIT_S
    assert together[0].compute_s == together[1].compute_s
    assert code_of(lambda: late.result(WAIT_S)) is Code.DEADLINE_EXCEEDED
    assert late.compute_s == 0


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(-1, 5), min_size=1, max_size=4),
            st.sampled_from([None, ["y"], ["n", "y"]]),
        ),
        max_size=9,
    )
)
@settings(max_examples=30, deadline=None)
def test_together_or_alone_the_answers_are_the_same(asked):
    model = scheduled(Slow(), AdaptiveBatching(assumed=("*",), slots=1))
    requests = [("s", rows(*values), outputs) for values, outputs in asked]

    def told(future):
        error = future.exception(WAIT_S)
        return (
            error.code
            if error
            else [(name, a.tolist()) for name, a in future.result().items() if name == "y"]
        )

    together = [told(future) for future in [model.submit(*request) for request in requests]]
    assert together == [told(model.submit(*request)) for request in requests]
    model.close()


def test_outputs_come_in_the_order_asked_for(wrapped):
    assert list(wrapped.run("s", rows(1), ["n", "y"])) == ["n", "y"]
    assert list(wrapped.run("s", rows(1), ["y", "n"])) == ["y", "n"]


def test_one_bad_request_fails_alone(wrapped, slow):
    occupy(wrapped, slow)
    good = [wrapped.submit("s", rows(1)), wrapped.submit("s", rows(3))]
    bad = wrapped.submit("s", rows(-1))
    other_shape = wrapped.submit("s", {"x": np.ones((1, 5), np.float32)})
    other_type = wrapped.submit("s", {"x": np.ones((1, 1), np.float64)})
    slow.go_on.set()
    assert [f.result(WAIT_S)["y"].item() for f in good] == [2, 6]
    assert code_of(lambda: bad.result(WAIT_S)) is Code.INVALID_ARGUMENT
    assert other_shape.result(WAIT_S)["y"].shape == (1, 5)
    assert other_type.result(WAIT_S)["y"].dtype == np.float64
    assert slow.batches[:5] == [1, 3, 1, 1, 1]


def test_a_cancelled_request_is_not_computed(wrapped, slow):
    first = occupy(wrapped, slow)
    gone, kept = wrapped.submit("s", rows(1)), wrapped.submit("s", rows(2))
    assert gone.cancel()
    assert not first.cancel()
    slow.go_on.set()
    kept.result(WAIT_S)
    assert slow.batches == [1, 1]
    with pytest.raises(CancelledError):
        gone.result()


def test_a_deadline_is_kept_while_the_model_is_busy(wrapped, slow):
    occupy(wrapped, slow)
    late = wrapped.submit("s", rows(1), None, time.monotonic())
    good = wrapped.submit("s", rows(1), None, time.monotonic() + WAIT_S)
    slow.go_on.set()
    assert code_of(lambda: late.result(WAIT_S)) is Code.DEADLINE_EXCEEDED
    assert good.result(WAIT_S)["y"].item() == 2
    assert slow.batches == [1, 1]


def test_a_deadline_that_passes_during_the_computation_is_ignored(wrapped, slow):
    call = wrapped.submit("s", rows(7), None, time.monotonic() + 0.05)
    assert slow.holding.acquire(timeout=WAIT_S)
    time.sleep(0.06)  # what is being computed is answered all the same
    slow.go_on.set()
    assert call.result(WAIT_S)["y"].item() == 14


def test_a_full_queue_answers_at_once(wrapped, slow):
    occupy(wrapped, slow)
    waiting = [wrapped.submit("s", rows(1)) for _ in range(8)]
    assert code_of(lambda: wrapped.run("s", rows(1))) is Code.UNAVAILABLE
    refused = wrapped.submit("fixed", {"x": np.ones(2, np.float32)})
    assert refused.done()
    assert code_of(refused.result) is Code.UNAVAILABLE
    slow.go_on.set()
    assert all(f.result(WAIT_S)["y"].item() == 2 for f in waiting)


def test_what_cannot_go_together_goes_apart(wrapped, slow):
    fixed = {"x": np.ones(2, np.float32)}
    assert wrapped.run("fixed", fixed)["y"].tolist() == [2, 2]
    assert wrapped.submit("fixed", fixed).result(WAIT_S)["y"].tolist() == [2, 2]
    scalar = {"x": np.float32(3)}
    with pytest.raises(TypeError):  # the fake's own
        wrapped.run("s", scalar)
    assert wrapped.run("s", rows())["y"].shape == (0, 1)
    occupy(wrapped, slow)
    slow.batches.clear()
    apart = [wrapped.submit("fixed", fixed) for _ in range(3)]
    slow.go_on.set()
    for future in apart:
        future.result(WAIT_S)
    assert slow.batches == [2, 2, 2]


def test_outputs_that_do_not_follow_end_the_batching(wrapped, slow):
    occupy(wrapped, slow)
    run = slow.run
    slow.run = lambda *args: {name: array[:1] for name, array in run(*args).items()}
    futures = [wrapped.submit("s", rows(n)) for n in (1, 2)]
    slow.go_on.set()
    assert [f.result(WAIT_S)["y"].item() for f in futures] == [2, 4]
    slow.run = run
    assert sizes_of_next_batches(wrapped, slow) == [1, 1]


def test_a_real_request_proves_what_made_up_ones_could_not(slow):
    run = slow.run

    def picky(signature, inputs, outputs=None):
        if (inputs["x"] == 0).any():
            raise StatusError(Code.INVALID_ARGUMENT, "zero")
        return run(signature, inputs, outputs)

    slow.run = picky
    model = scheduled(slow, AdaptiveBatching(assumed=("*",), slots=1))
    assert model.run("s", rows(5))["y"].item() == 10
    learn(model)
    assert sizes_of_next_batches(model, slow) == [2]
    model.close()


def sizes_of_next_batches(model, slow):
    """Submit two requests while the only slot is taken."""
    slow.go_on.clear()
    occupy(model, slow)
    slow.batches.clear()
    futures = [model.submit("s", rows(n)) for n in (1, 2)]
    slow.go_on.set()
    assert [f.result(WAIT_S)["y"].item() for f in futures] == [2, 4]
    return slow.batches


def test_an_observer_that_fails_costs_no_answer(slow, caplog):
    def fail(observation):
        raise ValueError("full")

    model = scheduled(slow, AdaptiveBatching(assumed=("*",)), fail)
    assert model.run("s", rows(1))["y"].item() == 2
    model.close()  # it is counted after it was answered
    assert "the observer of batches failed" in caplog.text


def test_a_defect_of_the_runtime_reaches_the_caller(slow):
    model = scheduled(slow, AdaptiveBatching(assumed=("*",)))
    slow.run = lambda *args: {"y": None}
    with pytest.raises(KeyError):
        model.submit("s", rows(1)).result(WAIT_S)
    model.close()


def test_closing_answers_what_waits_and_refuses_what_comes(slow):
    model = scheduled(
        slow, BatchingParameters(batch_timeout_micros=60_000_000, num_batch_threads=1)
    )
    waiting = model.submit("s", rows(1))
    model.close()
    assert waiting.result(0)["y"].item() == 2
    assert code_of(model.submit("s", rows(1)).result) is Code.UNAVAILABLE


def test_closing_does_not_wait_for_what_is_given_up_meanwhile(slow):
    model = scheduled(slow, AdaptiveBatching(assumed=("*",), slots=1))
    learn(model)
    first = occupy(model, slow)
    gone = model.submit("s", rows(1))
    closing = threading.Thread(target=model.close)
    closing.start()
    while model.submit("s", rows(1)).cancel():
        time.sleep(0.001)
    time.sleep(0.05)  # it waits now
    assert gone.cancel()
    slow.go_on.set()
    closing.join(WAIT_S / 10)
    assert not closing.is_alive()
    assert first.result(0)["y"].item() == 14


def threads_of(name):
    return [t for t in threading.enumerate() if t.name.startswith(f"{name}_")]


def test_threads_start_when_needed_and_end_with_their_version(slow):
    model = scheduled(slow, parameters(num_batch_threads=3, max_batch_size=1))
    assert not threads_of("batch_threads")
    for _ in range(5):
        assert model.run("s", rows(1))["y"].item() == 2
    assert len(threads_of("batch_threads")) == 1
    held = [occupy(model, slow) for _ in range(3)]
    more = model.submit("s", rows(1))
    assert len(threads_of("batch_threads")) == 3
    slow.go_on.set()
    for each in (*held, more):
        each.result(WAIT_S)
    model.close()
    assert not threads_of("batch_threads")
    assert slow.most == 3


def test_a_version_that_hangs_holds_up_only_itself():
    """24 clients send requests to two versions, of which one hangs."""
    settings, stuck = AdaptiveBatching(assumed=("*",), slots=2), Slow()
    hung, other = scheduled(stuck, settings), scheduled(Slow(delay_s=0.0002), settings)
    held = [occupy(hung, stuck), occupy(hung, stuck)]

    def client(number):
        waiting = hung.submit("s", rows(number))
        for step in range(20):
            values = [1000 + number * 100 + step] * (1 + step % 3)
            answer = other.run("s", rows(*values))["y"]
            assert answer.ravel().tolist() == [2 * value for value in values]
        return waiting

    with ThreadPoolExecutor(24) as pool:
        waiting = [each.result(60) for each in [pool.submit(client, n) for n in range(24)]]
    other.close()
    assert not any(each.done() for each in (*held, *waiting))
    stuck.go_on.set()
    assert [each.result(WAIT_S)["y"].item() for each in waiting] == [2 * n for n in range(24)]
    hung.close()


@pytest.mark.parametrize("assumed", [(), ("*",)], ids=["alone", "batched"])
def test_a_version_whose_threads_all_hang_is_unavailable(slow, monkeypatch, assumed):
    monkeypatch.setattr("timonel.serving.batching.scheduled_model.HUNG_S", 0.05)
    model = scheduled(slow, AdaptiveBatching(assumed=assumed, slots=2))
    first = occupy(model, slow)
    time.sleep(0.1)
    assert model.outage is None
    second = occupy(model, slow)
    assert model.outage is None
    until(lambda: isinstance(model.outage, HungError), WAIT_S)
    slow.go_on.set()
    first.result(WAIT_S)
    second.result(WAIT_S)
    until(lambda: model.outage is None, WAIT_S)
    model.close()


def parameters(**given):
    return BatchingParameters(**{"num_batch_threads": 1, **given})


def test_parameters_that_contradict_each_other_fail_the_load(slow):
    assert code_of(lambda: scheduled(slow, parameters(max_batch_size=0))) is Code.INVALID_ARGUMENT
    assert slow.closed.is_set()


def test_a_version_without_parameters_of_its_own_is_not_batched(slow, tmp_path):
    settings = parameters(per_model=True)
    alone = scheduled(Slow(), settings, version=tmp_path)
    assert alone.run("fixed", {"x": np.float32([1, 2, 3])})["y"].tolist() == [2, 4, 6]
    alone.close()
    (tmp_path / "batching_params.pbtxt").write_text("max_batch_size { value: 2 }")
    model = scheduled(slow, settings, version=tmp_path)
    assert code_of(lambda: model.run("s", rows(1, 2, 3))) is Code.INVALID_ARGUMENT
    model.close()


def test_parameters_wait_for_company_and_pad(slow):
    observed = []
    settings = parameters(
        max_batch_size=4, allowed_batch_sizes=(4,), batch_timeout_micros=60_000_000
    )
    model = scheduled(slow, settings, observed.append)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(model.run, "s", rows(1, 2))
        second = pool.submit(model.run, "s", rows(3, 4))
        assert first.result(WAIT_S)["y"].ravel().tolist() == [2, 4]
        assert second.result(WAIT_S)["n"].tolist() in ([0, 1], [2, 3])
    alone = model.submit("s", rows(5))
    model.close()
    assert alone.result(0)["y"].tolist() == [[10]]
    assert slow.batches == [4, 4]
    assert [(o.rows, o.padded_rows) for o in observed] == [(4, 0), (1, 3)]


def test_with_parameters_an_error_is_everybodys(slow):
    model = scheduled(slow, parameters(max_batch_size=2, batch_timeout_micros=60_000_000))
    good, bad = model.submit("s", rows(1)), model.submit("s", rows(-1))
    for future in (good, bad):
        assert code_of(lambda future=future: future.result(WAIT_S)) is Code.INVALID_ARGUMENT
    odd, other = model.submit("s", rows(1)), model.submit("s", {"x": np.ones((1, 2), np.float32)})
    for future in (odd, other):
        assert code_of(lambda future=future: future.result(WAIT_S)) is Code.FAILED_PRECONDITION
    assert code_of(lambda: model.run("s", {"x": np.float32(1)})) is Code.INVALID_ARGUMENT
    assert code_of(model.submit("none", {}).result) is Code.INVALID_ARGUMENT
    model.close()


def test_with_parameters_outputs_must_have_the_rows_of_a_single_request(slow):
    model = scheduled(slow, parameters())
    run = slow.run
    slow.run = lambda *args: {name: array[:1] for name, array in run(*args).items()}
    assert code_of(lambda: model.run("s", rows(1, 2))) is Code.FAILED_PRECONDITION
    model.close()


def test_with_parameters_a_batch_that_is_late_is_exhausted(slow):
    model = scheduled(slow, parameters(max_batch_size=2))
    occupy(model, slow)
    late = [model.submit("s", rows(n), None, time.monotonic()) for n in (1, 2)]
    mixed = [model.submit("s", rows(3), None, time.monotonic()), model.submit("s", rows(4))]
    slow.go_on.set()
    for future in late:
        assert code_of(lambda future=future: future.result(WAIT_S)) is Code.RESOURCE_EXHAUSTED
    assert [f.result(WAIT_S)["y"].item() for f in mixed] == [6, 8]
    model.close()


def test_large_requests_are_split_and_put_together_again(slow):
    settings = parameters(
        max_batch_size=10,
        enable_large_batch_splitting=True,
        max_execution_batch_size=3,
        num_batch_threads=2,
    )
    model = scheduled(slow, settings)
    values = list(range(10, 18))
    assert model.run("s", rows(*values))["y"].ravel().tolist() == [2 * v for v in values]
    assert sorted(slow.batches) == [2, 3, 3]
    assert code_of(lambda: model.run("s", rows(1, 2, 3, 4, -1))) is Code.INVALID_ARGUMENT
    model.close()


@pytest.mark.parametrize(
    "settings",
    [
        AdaptiveBatching(assumed=("*",), slots=2, max_queued=20),
        BatchingParameters(
            max_batch_size=6,
            batch_timeout_micros=500,
            num_batch_threads=2,
            enable_large_batch_splitting=True,
            max_execution_batch_size=4,
            max_enqueued_batches=6,
        ),
    ],
    ids=["adaptive", "parameters"],
)
def test_under_load_every_request_has_its_own_answer(settings):
    slow = Slow(delay_s=0.0005)
    model = scheduled(slow, settings)
    ends = {"ok": 0, "cancelled": 0}
    lock = threading.Lock()

    def client(seed):
        choose = random.Random(seed)
        for number in range(60):
            values = [seed * 1000 + number + 1] * choose.randint(1, 5)
            if choose.random() < 0.1:
                values[-1] = -1
            deadline = time.monotonic() + 0.001 if choose.random() < 0.1 else None
            end = attempt(model, choose, values, deadline)
            with lock:
                ends[end] = ends.get(end, 0) + 1

    with ThreadPoolExecutor(12) as pool:
        clients = [pool.submit(client, seed) for seed in range(1, 13)]
        for each in clients:
            each.result(60)
    futures = [model.submit("s", rows(1)) for _ in range(15)]
    model.close()
    assert all(future.done() for future in futures)
    assert sum(ends.values()) == 12 * 60
    assert ends["ok"] > 100, ends
    assert slow.most <= 2
    assert ends.keys() <= {
        "ok",
        "cancelled",
        Code.INVALID_ARGUMENT,
        Code.UNAVAILABLE,
        Code.DEADLINE_EXCEEDED,
        Code.RESOURCE_EXHAUSTED,
    }


def attempt(model, choose, values, deadline):
    try:
        if choose.random() < 0.5:
            answer = model.run("s", rows(*values), ["y"])
        else:
            future = model.submit("s", rows(*values), ["y"], deadline)
            if choose.random() < 0.2 and future.cancel():
                return "cancelled"
            answer = future.result(WAIT_S)
    except StatusError as error:
        return error.code
    assert answer["y"].ravel().tolist() == [2 * value for value in values]
    return "ok"


@pytest.mark.slow
@pytest.mark.parametrize("signature", ["s", "fixed"])
def test_a_refused_request_is_freed_without_garbage_collection(wrapped, signature):
    shape = (1, 1) if signature == "s" else (2,)
    with freed_by_reference_counts(np.full(shape, -1, np.float32)) as inputs:
        assert wrapped.submit(signature, dict(inputs)).exception(WAIT_S).message == "negative"


@pytest.mark.slow
def test_a_split_request_is_freed_without_garbage_collection(slow):
    settings = parameters(enable_large_batch_splitting=True, max_execution_batch_size=2)
    model = scheduled(slow, settings)
    with freed_by_reference_counts(np.ones((5, 1), np.float32)) as inputs:
        assert model.submit("s", dict(inputs)).result(WAIT_S)["y"].tolist() == [[2]] * 5
    held = occupy(model, slow)
    with freed_by_reference_counts(np.ones((5, 1), np.float32)) as inputs:
        assert model.submit("s", dict(inputs)).cancel()
        assert model.queued == 0
    slow.go_on.set()
    held.result(WAIT_S)
    model.close()


# Without batches.


@pytest.fixture
def alone(slow):
    """One thread, at most 500 waiting requests, no batches."""
    model = scheduled(slow, AdaptiveBatching(slots=1, max_queued=500))
    yield model
    slow.go_on.set()
    model.close()
    assert slow.closed.is_set()


def test_without_batches_requests_wait_for_a_thread_and_tell_how_long_they_took(alone, slow):
    futures = [occupy(alone, slow), *(alone.submit("s", rows(n)) for n in range(500))]
    assert alone.queued == 500
    assert not any(future.done() for future in futures)
    with pytest.raises(NotStartedError, match="500 requests wait for this version already"):
        alone.run("s", rows(1))
    slow.go_on.set()
    answers = [future.result(WAIT_S)["y"].item() for future in futures]
    assert answers == [14, *(2 * n for n in range(500))]
    assert all(0 < future.compute_s < WAIT_S for future in futures)
    assert slow.batches == [1] * 501


def test_without_batches_what_is_cancelled_or_late_is_not_computed(alone, slow):
    first = occupy(alone, slow)
    gone, late = alone.submit("s", rows(1)), alone.submit("s", rows(1), None, time.monotonic())
    kept = alone.submit("s", rows(1))
    assert gone.cancel()
    assert alone.queued == 2
    slow.go_on.set()
    kept.result(WAIT_S)
    first.result(WAIT_S)
    assert code_of(lambda: late.result(WAIT_S)) is Code.DEADLINE_EXCEEDED
    assert len(slow.batches) == 2


def test_without_batches_a_cancelled_request_makes_room_for_another(alone, slow):
    occupy(alone, slow)
    waiting = [alone.submit("s", rows(n)) for n in range(500)]
    assert all(future.cancel() for future in waiting)
    other = alone.submit("s", rows(3))
    slow.go_on.set()
    assert other.result(WAIT_S)["y"].item() == 6


def test_without_batches_a_refusal_is_the_answer_and_is_freed(alone):
    with freed_by_reference_counts(-np.ones((1, 1), np.float32)) as inputs:
        refused = alone.submit("s", dict(inputs))
        assert refused.exception(WAIT_S).message == "negative"
        assert refused.compute_s >= 0
        del refused


def test_without_batches_what_comes_after_the_end_is_refused(slow):
    model = scheduled(slow)
    model.close()
    assert code_of(model.submit("s", rows(1)).result) is Code.UNAVAILABLE
