"""One flow for all protocols: limits, deadlines, failures and several runs of one request."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from timonel.serving.batching.queue import QueuedRequest
from timonel.serving.batching.scheduled_model import ScheduledModel
from timonel.serving.inference.flow import Codec, Flow, SignatureRun
from timonel.serving.manager.catalogue import Catalogue, ModelSpec, Servable
from timonel.serving.signature import Signature, TensorSpec, string_array
from timonel.serving.status import Code, NotStartedError, StatusError
from timonel.serving.telemetry.monitor import Monitor

X = TensorSpec("x:0", "DT_FLOAT", (-1,))


class Model(ScheduledModel):
    """Keeps the futures of its requests; the test completes them."""

    def __init__(self):
        self.signatures = {"serving_default": Signature("serving_default", {"x": X}, {"y": X})}
        self.futures = []

    def submit(self, signature, inputs, outputs=None, deadline=None):
        self.futures.append(Future())
        self.futures[-1].deadline = deadline
        return self.futures[-1]

    def close(self):
        pass


def failed(error):
    request = QueuedRequest("serving_default", {}, ["y"], 0.0)
    request.set_exception(error)
    return request


NUMBERS = np.ones(1, np.float32)


class Twice(Codec[list]):
    """Runs the default signature some times."""

    entrypoint = "GRPC"
    api = "Predict"

    def __init__(self, runs=1, size=0, timeout_s=None, model="m", x=NUMBERS):
        self.model = model
        self.size = size
        self.x = x
        self.runs = runs
        self.asked_s = timeout_s

    def prepare(self, acquire):
        call = acquire(ModelSpec(self.model))
        self.timeout_s = self.asked_s
        return [SignatureRun(call.signature(""), {"x": self.x})] * self.runs

    def encode(self, call, outputs):
        return [(call.name, call.version), *(each["y"].tolist() for each in outputs)]


class Rig:
    def __init__(self, pool, **limits):
        self.model = Model()
        self.servable = Servable("m", 3, self.model)
        catalogue = Catalogue({"m": {}})
        catalogue.publish("m", {3: self.servable}, ())
        self.monitor = Monitor()
        self.flow = Flow(catalogue, pool, self.monitor, **limits)

    def run(self, codec, *results, timeout_s=None):
        """Complete the runs of a request with arrays or errors, and return its response."""

        async def main():
            task = asyncio.create_task(self.flow.run(codec, timeout_s))
            for _ in iter(lambda: task.done() or len(self.model.futures) >= len(results), True):
                await asyncio.sleep(0)
            for future, result in zip(self.model.futures, results, strict=False):
                if isinstance(result, Exception):
                    future.set_exception(result)
                elif result is not None:
                    future.set_result({"y": np.array(result, np.float32)})
            return await task

        return asyncio.run(main())

    @property
    def codes(self):
        return [each.key.code for each in self.monitor.recent()]

    @property
    def is_idle(self):
        idle = threading.Event()
        self.servable.retire(idle.set)
        return idle.is_set()


@pytest.fixture
def rig():
    with ThreadPoolExecutor(1) as pool:
        yield lambda **limits: Rig(pool, **limits)


@pytest.mark.parametrize("size", [0, 2**20])
def test_a_request_of_several_runs(rig, size):
    made = rig()
    assert made.run(Twice(2, size), [1], [2, 3]) == [("m", 3), [1], [2, 3]]
    assert made.codes == [Code.OK]
    assert made.is_idle


def test_bytes_of_large_requests_are_limited_for_all_together(rig):
    made = rig(max_computing=3 * 2**20)

    async def main():
        codecs = [Twice(size=2**20 if number else 2**10) for number in range(5)]
        tasks = [asyncio.create_task(made.flow.run(codec)) for codec in codecs]
        for _ in iter(lambda: len(made.model.futures) >= 4, True):
            await asyncio.sleep(0.001)
        with pytest.raises(NotStartedError, match="Too many bytes"):
            await tasks[4]
        for future in made.model.futures:
            future.set_result({"y": np.ones(1, np.float32)})
        assert [await task for task in tasks[:4]] == [[("m", 3), [1]]] * 4

    asyncio.run(main())
    assert made.flow.held == 0
    assert made.is_idle


def test_a_request_that_can_never_be_computed_is_not_sent_to_another_server(rig):
    made = rig(max_computing=3 * 2**20)
    with pytest.raises(StatusError, match="more than --max-receiving allows") as caught:
        made.run(Twice(size=4 * 2**20), [1])
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    assert not isinstance(caught.value, NotStartedError)
    assert made.is_idle


@pytest.mark.parametrize(
    "x", [np.ones(2**20, np.float32), string_array([b"x" * 2**21] * 2)], ids=["numbers", "strings"]
)
def test_arrays_count_that_are_larger_than_their_request(rig, x):
    made = rig(max_computing=3 * 2**20)
    with pytest.raises(StatusError, match="more than --max-receiving allows") as caught:
        made.run(Twice(size=100, x=x), [1])
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    assert made.flow.held == 0
    assert made.is_idle


def test_a_failed_run_ends_the_others(rig):
    made = rig()
    with pytest.raises(StatusError, match="no"):
        made.run(Twice(2), StatusError(Code.OUT_OF_RANGE, "no"), None)
    assert made.model.futures[1].cancelled()
    assert made.codes == [Code.OUT_OF_RANGE]
    assert made.is_idle


def test_an_error_keeps_its_type_and_no_request(rig, monkeypatch):
    made, codec = rig(), Twice()
    monkeypatch.setattr(made.model, "submit", lambda *_: failed(NotStartedError("full")))

    async def main(codec):
        try:
            await made.flow.run(codec)
        except NotStartedError as error:
            return error.message

    gc.disable()
    try:
        assert asyncio.run(main(codec)) == "full"
        known = weakref.ref(codec)
        del codec
        assert known() is None
    finally:
        gc.enable()


def test_a_response_has_a_limit(rig):
    made = rig(max_response=8)
    assert made.run(Twice(), [1, 2])[1:] == [[1, 2]]
    made = rig(max_response=8)
    with pytest.raises(StatusError, match=r"tensors of 12 bytes; the limit is 8\..*--max-response"):
        made.run(Twice(), [1, 2, 3])
    assert made.codes == [Code.RESOURCE_EXHAUSTED]
    assert made.is_idle


@pytest.mark.parametrize(("server_s", "client_s"), [(0.02, None), (60, 0.02), (None, 0.02)])
def test_the_shorter_time_limit_counts(rig, server_s, client_s):
    made = rig()
    with pytest.raises(StatusError) as caught:
        made.run(Twice(timeout_s=client_s), None, timeout_s=server_s)
    assert (caught.value.code, caught.value.message) == (
        Code.DEADLINE_EXCEEDED,
        "Deadline Exceeded",
    )
    assert made.model.futures[0].cancelled()
    assert made.model.futures[0].deadline is not None
    assert made.codes == [Code.DEADLINE_EXCEEDED]


def test_an_expired_request_does_not_reach_its_model(rig):
    made = rig()
    with pytest.raises(StatusError, match="Deadline Exceeded"):
        made.run(Twice(), timeout_s=0)
    assert made.model.futures == []
    assert made.is_idle


def test_a_defect_costs_one_request(rig, caplog):
    made = rig()
    with pytest.raises(StatusError, match="ZeroDivisionError: oh"):
        made.run(Twice(), ZeroDivisionError("oh"))
    with pytest.raises(StatusError, match="Servable not found"):
        made.run(Twice(model="n"))
    assert made.codes == [Code.INTERNAL, Code.NOT_FOUND]
    assert "model m failed" in caplog.text


def test_reads_are_observed(rig):
    made = rig()
    with pytest.raises(StatusError, match="ValueError"), made.flow.observed("REST", "", "m"):
        raise ValueError
    with pytest.raises(asyncio.CancelledError), made.flow.observed("REST", ""):
        raise asyncio.CancelledError
    with made.flow.observed("GRPC", "GetModelStatus", "m"):
        pass
    assert made.codes == [Code.INTERNAL, Code.CANCELLED, Code.OK]
