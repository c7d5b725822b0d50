"""Calls that wait for a model: how many there may be, and how they end early."""

from __future__ import annotations

import threading

import grpc
import numpy as np
import pytest

from tests.serving.protocols.tfs_grpc.conftest import SIGNATURES, Lengths, running
from tests.serving.protocols.tfs_grpc.test_services import SHORT, predict_request
from tests.waiting import until
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.protos.messages import inference_pb2
from timonel.serving.settings.batching import AdaptiveBatching

ONE = np.ones(1, np.float32)
K = np.ones(1, np.float32)


class Held(Lengths):
    """Computes when it is let; keeps how much it was asked at once, and by which name."""

    def __init__(self):
        super().__init__()
        self.signatures = {each.name: each for each in SIGNATURES}
        self.began = threading.Semaphore(0)
        self.batches = []
        self.names = []

    def run(self, signature, inputs, outputs=None):
        self.batches.append(len(next(iter(inputs.values()))))
        self.names.append(signature)
        self.began.release()
        assert self.release.wait(60)
        return super().run(signature, inputs, outputs)


def asked(client, x=ONE):
    return client.Predict.future(predict_request("strict", x=x, k=K), timeout=60)


@pytest.fixture
def held():
    model = Held()
    yield model
    model.release.set()


def test_five_hundred_wait_without_a_thread_and_are_one_batch(held):
    held.release.set()
    model = scheduled(held, AdaptiveBatching(assumed=("*",), slots=1))
    for size in (1, 64, 4096) * 3:
        model._policy.computed("strict", size, 1.0)
    held.batches.clear()
    held.release.clear()
    held.began = threading.Semaphore(0)
    with running(model) as client:
        first = asked(client)
        assert held.began.acquire(timeout=60)
        threads = set(threading.enumerate())
        others = [asked(client, n * ONE) for n in range(500)]
        until(lambda: model.queued == 500)
        assert set(threading.enumerate()) <= threads  # those of other tests may end meanwhile
        held.release.set()
        assert [list(call.result().outputs["y"].float_val) for call in others] == [
            [n] for n in range(500)
        ]
        first.result()
    model.close()
    assert held.batches == [1, 500]


def test_a_call_that_is_cancelled_leaves_the_queue(held):
    model = scheduled(held, threads=1)
    with running(model) as client:
        first = asked(client)
        assert held.began.acquire(timeout=60)
        gone, kept = asked(client), asked(client)
        late = client.Predict.future(predict_request("strict", x=ONE, k=K), timeout=0.2)
        until(lambda: model.queued == 3)
        assert gone.cancel()
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        # Clients do not wait until the server knows.
        until(lambda: model.queued == 1)
        held.release.set()
        first.result()
        kept.result()
    model.close()
    assert len(held.batches) == 2


def test_the_tasks_of_a_request_run_at_the_same_time_once_each(held):
    model = scheduled(held, threads=2)
    request = inference_pb2.MultiInferenceRequest()
    for name, method in (("classes", "classify"), ("value", "regress")):
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = "m", name
    request.input.example_list.examples.add().ParseFromString(SHORT)
    with running(model) as client:
        call = client.MultiInference.future(request, timeout=60)
        assert held.began.acquire(timeout=60)
        assert held.began.acquire(timeout=60), "both"
        held.release.set()
        assert len(call.result().results) == 2
    model.close()
    assert sorted(held.names) == ["classes", "value"]
