"""A runtime in processes of its own is a runtime: with a fake one inside, and with TensorFlow."""

from __future__ import annotations

import asyncio

import numpy as np
import psutil
import pytest
import uvloop

from timonel.serving.isolation import ProcessRuntime
from timonel.serving.settings import RuntimeSettings
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.testing.runtimes import RuntimeContract

DOUBLER = "tests.serving.isolation.faults:DoublerRuntime"
TENSORFLOW = "timonel.serving.runtimes.tensorflow:TensorFlowRuntime"

BATCHED = RuntimeSettings(intra_op_threads=1, batching=AdaptiveBatching(assumed=("*",)))
BATCHES = []


@pytest.fixture(scope="module")
def doubler():
    runtime = ProcessRuntime(DOUBLER)
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def tensorflow():
    """One zygote for all: it imports TensorFlow."""
    runtime = ProcessRuntime(TENSORFLOW, observer=lambda _: BATCHES.append)
    runtime.start()
    yield runtime
    runtime.close()


@pytest.mark.process
class TestContract(RuntimeContract):
    @pytest.fixture
    def runtime(self, doubler):
        return doubler

    @pytest.fixture
    def version(self, tmp_path):
        folder = tmp_path / "version"
        folder.mkdir()
        (folder / "saved_model.pb").touch()
        return folder


@pytest.mark.process
class TestContractWithTensorFlow(RuntimeContract):
    @pytest.fixture
    def runtime(self, tensorflow):
        return tensorflow

    @pytest.fixture
    def version(self, exports):
        return exports / "doubler"


@pytest.mark.process
def test_scalars_bytes_and_a_large_array(tensorflow, exports):
    model = tensorflow.load(exports / "shapes", RuntimeSettings())
    outputs = model.run("serving_default", {"n": np.array(200_000, np.int32)})
    assert outputs["raw_bytes"].item() == b"\xff\x00"
    assert outputs["range"].tolist() == list(range(200_000))
    assert np.isnan(outputs["nan"])
    assert outputs["squared"].shape == ()
    model.close()


@pytest.mark.process
def test_batches_are_formed_there_and_told_here(tensorflow, exports):
    model = tensorflow.load(exports / "versioned-2", BATCHED)
    BATCHES.clear()
    inputs = [{"x": np.full(2, number, np.float32)} for number in range(40)]
    asked = [model.submit("serving_default", each) for each in inputs]
    for number, answer in enumerate(asked):
        assert answer.result(30)["y"].tolist() == [2 * number] * 2
    model.close()
    assert sum(batch.rows for batch in BATCHES) == 80
    assert {batch.signature for batch in BATCHES} == {"serving_default"}
    assert all(batch.compute_s > 0 and min(batch.queue_s) >= 0 for batch in BATCHES)


@pytest.mark.process
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_an_event_loop_asks_in_a_turn_is_computed_together(tensorflow, exports, new_loop):
    model = tensorflow.load(exports / "versioned-2", BATCHED)
    BATCHES.clear()

    async def ask(number):
        future = model.submit("serving_default", {"x": np.full(1, number, np.float32)})
        return (await asyncio.wrap_future(future))["y"].tolist()

    async def ask_all():
        for _ in range(30):
            answers = await asyncio.gather(*(ask(number) for number in range(20)))
            assert answers == [[2 * number] for number in range(20)]

    loop = new_loop()
    loop.run_until_complete(ask_all())
    loop.close()
    model.close()
    assert sum(batch.rows for batch in BATCHES) == 600
    assert all(len(batch.queue_s) == batch.rows for batch in BATCHES)
    # How many are is for the scheduler to say: on a busy machine most turns are over too soon.
    assert any(batch.rows > 1 for batch in BATCHES)


@pytest.mark.process
def test_an_event_loop_that_waits_itself_is_answered(doubler, tmp_path):
    (tmp_path / "saved_model.pb").touch()
    model = doubler.load(tmp_path, RuntimeSettings())
    (name, signature), *_ = model.signatures.items()
    inputs = {each: np.ones((1, 2), np.float32) for each in signature.inputs}

    async def wait():
        asked = [model.submit(name, inputs) for _ in range(3)]
        assert asked[2].exception(30) is None
        assert asked[0].result(30).keys() == model.run(name, inputs).keys()
        last = [model.submit(name, inputs) for _ in range(3)]
        model.close()
        assert all(each.done() for each in last)

    asyncio.run(wait())


@pytest.mark.soak
def test_memory_comes_back_after_fifty_swaps(tensorflow, exports):
    """All of it: what a version took ends with its process."""

    def held():
        processes = [psutil.Process(), psutil.Process(tensorflow._zygote.pid)]
        return [(p.memory_info().rss, p.num_fds()) for p in processes]

    def swap():
        model = tensorflow.load(exports / "dense", BATCHED)
        model.run("serving_default", {"x": np.ones((64, 8, 8, 2), np.float32)})
        model.close()

    swap()
    before = held()
    for _ in range(50):
        swap()
    for (rss, descriptors), (rss_before, descriptors_before) in zip(held(), before, strict=True):
        assert rss < 1.1 * rss_before
        assert descriptors <= descriptors_before  # fewer, if others were only just closed
