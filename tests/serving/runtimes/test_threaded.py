from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tests.serving.freeing import freed_by_reference_counts
from tests.serving.isolation.faults import DoublerRuntime
from timonel.serving.batching.runtime import BatchingRuntime
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.threaded import ThreadedModel, scheduled
from timonel.serving.settings.batching import NoBatching
from timonel.serving.signature import DEFAULT_SIGNATURE, Signature
from timonel.serving.status import Code, StatusError
from timonel.testing.runtimes import RuntimeContract

ONE = {"x": np.ones(1)}


class TestContract(RuntimeContract):
    @pytest.fixture
    def runtime(self):
        return BatchingRuntime(DoublerRuntime(), NoBatching(), threads=3)

    @pytest.fixture
    def version(self, tmp_path):
        folder = tmp_path / "version"
        folder.mkdir()
        (folder / "saved_model.pb").touch()
        return folder


class Held(LoadedModel):
    """Computes when it is let, one after the other."""

    def __init__(self):
        self.signatures = {DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, {}, {})}
        self.began = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        self.closed = False
        self.runs = 0

    def run(self, signature, inputs, outputs=None):
        assert not self.closed
        self.began.release()
        assert self.may_go_on.wait(60)
        self.runs += 1
        if inputs["x"][0] < 0:
            raise StatusError(Code.INVALID_ARGUMENT, "negative")
        return dict(inputs)

    def close(self):
        self.closed = True


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def model(held):
    model = ThreadedModel(held, threads=1)
    yield model
    held.may_go_on.set()
    model.close()
    assert held.closed


def ask(model, x=ONE, deadline=None):
    return model.submit(DEFAULT_SIGNATURE, x, None, deadline)


def occupy(model, held):
    first = ask(model)
    assert held.began.acquire(timeout=60)
    return first


def test_a_version_that_schedules_is_left_alone(model, held):
    assert scheduled(model) is model
    assert isinstance(scheduled(held), ThreadedModel)


def test_requests_wait_for_a_thread_and_tell_how_long_they_took(model, held):
    futures = [occupy(model, held), *(ask(model) for _ in range(500))]
    assert not any(future.done() for future in futures)
    held.may_go_on.set()
    assert all(future.result(60)["x"] == 1 for future in futures)
    assert all(0 <= future.compute_s < 60 for future in futures)


def test_what_is_cancelled_or_late_is_not_computed(model, held):
    first = occupy(model, held)
    gone, late, kept = ask(model), ask(model, deadline=time.monotonic()), ask(model)
    assert gone.cancel()
    held.may_go_on.set()
    kept.result(60)
    first.result(60)
    with pytest.raises(StatusError) as told:
        late.result(60)
    assert told.value.code is Code.DEADLINE_EXCEEDED
    assert held.runs == 2


def test_a_refusal_is_the_answer(model, held):
    held.may_go_on.set()
    refused = ask(model, {"x": -np.ones(1)})
    assert isinstance(refused.exception(60), StatusError)
    assert refused.compute_s >= 0


def test_what_comes_after_the_end_is_refused(held):
    model = ThreadedModel(held, threads=1)
    model.close()
    assert ask(model).exception(60).code is Code.UNAVAILABLE


def test_a_refused_request_is_freed_without_garbage_collection(model, held):
    held.may_go_on.set()
    with freed_by_reference_counts(-np.ones(1)) as inputs:
        assert ask(model, dict(inputs)).exception(60).message == "negative"
