"""Requests that wait for a model: how many there may be, and how they end early."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.serving.protocols.tfs_rest.options import rest_options, rest_router
from timonel.serving import asgi
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code
from timonel.serving.telemetry.monitor import Monitor


class Slow(LoadedModel):
    """Doubles, a batch at a time, when it is let."""

    def __init__(self):
        x = TensorSpec("x:0", "DT_FLOAT", (-1, 1))
        self.signatures = {"serving_default": Signature("serving_default", {"x": x}, {"y": x})}
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.began = threading.Event()
        self.batches = []

    def run(self, signature, inputs, outputs=None):
        self.batches.append(len(inputs["x"]))
        self.began.set()
        assert self.may_go_on.wait(60)
        return {"y": inputs["x"] * 2}

    def close(self):
        pass


class Asked:
    """A REST skin over a model that computes one batch at a time, and holds it up."""

    def __init__(self, pool, **options):
        self.slow = Slow()
        self.model = scheduled(self.slow, AdaptiveBatching(assumed=("*",), slots=1))
        for size in (1, 64, 4096) * 3:
            self.model._policy.computed("serving_default", size, 1.0)
        self.slow.batches.clear()
        self.slow.began.clear()
        self.slow.may_go_on.clear()
        self.servable = Servable("m", 3, self.model)
        self.monitor = Monitor()
        catalogue = Catalogue({"m": {}})
        catalogue.publish("m", {3: self.servable}, ())
        self.app = rest_router(catalogue, pool, self.monitor, **rest_options(**options))
        self.gone = None

    async def ask(self, content, gone=None, headers=()):
        """Return the status and the content; ``gone`` is set when the client leaves."""
        messages, body = [], json.dumps(content).encode()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/models/m:predict",
            "raw_path": b"/v1/models/m:predict",
            "query_string": b"",
            "headers": headers,
        }
        unread = [{"type": "http.request", "body": body}]

        async def receive():
            if unread:
                return unread.pop()
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message):
            messages.append(message)

        await self.app(scope, receive, send)
        return messages[0]["status"], json.loads(messages[1]["body"])


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def asked(pool):
    made = []

    def make(**options):
        made.append(Asked(pool, **options))
        return made[-1]

    yield make
    for each in made:
        each.slow.may_go_on.set()
        each.model.close()


def instances(number):
    return {"instances": [[number]]}


async def occupy(asked):
    """Begin a request that the model is busy with."""
    first = asyncio.create_task(asked.ask(instances(7)))
    assert await asyncio.to_thread(asked.slow.began.wait, 60)
    return first


async def queued(asked, count):
    async with asyncio.timeout(60):
        for _ in iter(lambda: asked.model.queued < count, False):
            await asyncio.sleep(0.001)


def test_five_hundred_wait_without_a_thread_and_are_one_batch(asked):
    served = asked()

    async def main():
        first = await occupy(served)
        threads = threading.active_count()
        others = [asyncio.create_task(served.ask(instances(n))) for n in range(500)]
        await queued(served, 500)
        assert threading.active_count() <= threads  # those of earlier tests may end meanwhile
        served.slow.may_go_on.set()
        return await asyncio.gather(first, *others)

    _, *answers = asyncio.run(main())
    assert answers == [(200, {"predictions": [[2 * n]]}) for n in range(500)]
    assert served.slow.batches == [1, 500]


def test_a_request_keeps_its_version_until_it_is_answered(asked):
    served = asked()
    idle = threading.Event()

    async def main():
        first = await occupy(served)
        served.servable.retire(idle.set)
        assert not idle.is_set()
        served.slow.may_go_on.set()
        return await first

    assert asyncio.run(main())[0] == 200
    assert idle.is_set()


def test_who_is_gone_leaves_the_queue(asked, monkeypatch):
    monkeypatch.setattr(asgi, "_WATCH_AFTER_S", 0.001)
    served = asked()

    async def main():
        first, gone = await occupy(served), asyncio.Event()
        left = asyncio.create_task(served.ask(instances(1), gone))
        stayed = asyncio.create_task(served.ask(instances(2)))
        await queued(served, 2)
        gone.set()
        assert (await left)[0] == 499
        assert served.model.queued == 1
        served.slow.may_go_on.set()
        return await asyncio.gather(first, stayed)

    assert [status for status, _ in asyncio.run(main())] == [200, 200]
    assert served.slow.batches == [1, 1]
    assert [each.key.code for each in served.monitor.recent()].count(Code.CANCELLED) == 1


def test_who_is_gone_while_the_model_computes_does_no_harm(asked, monkeypatch):
    monkeypatch.setattr(asgi, "_WATCH_AFTER_S", 0.001)
    served = asked()

    async def main():
        gone = asyncio.Event()
        left = asyncio.create_task(served.ask(instances(1), gone))
        assert await asyncio.to_thread(served.slow.began.wait, 60)
        gone.set()
        assert (await left)[0] == 499
        idle = threading.Event()
        served.servable.retire(idle.set)
        assert idle.is_set()
        served.slow.may_go_on.set()

    asyncio.run(main())
    assert [each.key.code for each in served.monitor.recent()] == [Code.CANCELLED]


@pytest.mark.parametrize("headers", [[], [(b"content-encoding", b"gzip")]])
@pytest.mark.parametrize("end", ["gone", "cancelled", "late"])
def test_work_that_waits_for_the_pool_is_given_up(asked, pool, monkeypatch, headers, end):
    monkeypatch.setattr(asgi, "_WATCH_AFTER_S", 0.001)
    served = asked(timeout_s=0.02 if end == "late" else None)
    large = {"instances": [[1.5]] * 30_000}

    def hold_up(began, may_read):
        began.set()
        may_read.wait(60)

    async def main():
        began, may_read, gone = threading.Event(), threading.Event(), asyncio.Event()
        pool.submit(hold_up, began, may_read)
        submit, submitted = pool.submit, []
        monkeypatch.setattr(
            pool, "submit", lambda work: submitted.append(submit(work)) or submitted[-1]
        )
        try:
            assert await asyncio.to_thread(began.wait, 60)
            left = asyncio.create_task(served.ask(large, gone, headers))
            await asyncio.sleep(0)
            (work,) = submitted
            if end == "gone":
                gone.set()
            elif end == "cancelled":
                left.cancel()
            (found,) = await asyncio.gather(left, return_exceptions=True)
            assert work.cancelled()
            return found
        finally:
            may_read.set()

    found = asyncio.run(main())
    code = Code.DEADLINE_EXCEEDED if end == "late" else Code.CANCELLED
    assert [each.key.code for each in served.monitor.recent()] == [code]
    if end == "cancelled":
        assert isinstance(found, asyncio.CancelledError)
    else:
        assert found[0] == (504 if end == "late" else 499)


def test_a_task_that_is_cancelled_leaves_the_queue(asked):
    served = asked()

    async def main():
        first = await occupy(served)
        left = asyncio.create_task(served.ask(instances(1)))
        await queued(served, 1)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert served.model.queued == 0
        served.slow.may_go_on.set()
        return await first

    assert asyncio.run(main())[0] == 200


@pytest.mark.parametrize("patience_s", [0.001, 10.0])
def test_a_deadline_is_kept_while_the_model_is_busy(asked, monkeypatch, patience_s):
    monkeypatch.setattr(asgi, "_WATCH_AFTER_S", patience_s)
    served = asked(timeout_s=0.05)

    async def main():
        first = await occupy(served)
        began = time.monotonic()
        late = await served.ask(instances(1))
        assert 0.04 < time.monotonic() - began < 10
        assert (await first)[0] == 504
        return late

    assert asyncio.run(main()) == (504, {"error": "Timed out waiting for notification"})
    assert served.slow.batches == [1]


def test_the_wait_for_a_batch_is_told_apart(asked):
    served = asked()

    async def main():
        first = await occupy(served)
        other = asyncio.create_task(served.ask(instances(1)))
        await queued(served, 1)
        await asyncio.sleep(0.05)
        served.slow.may_go_on.set()
        await asyncio.gather(first, other)

    asyncio.run(main())
    _, last = served.monitor.recent()
    _, queue_s, compute_s, _ = last.stages
    assert queue_s >= 0.04
    assert 0 <= compute_s < queue_s


@pytest.mark.slow
def test_only_what_is_large_is_read_in_the_pool(asked, pool):
    served = asked()
    served.slow.may_go_on.set()
    large = np.zeros((40_000, 1)).tolist()
    assert asyncio.run(served.ask(instances(1)))[0] == 200
    assert not pool._threads
    status, answer = asyncio.run(served.ask({"instances": large}))
    assert (status, len(answer["predictions"])) == (200, 40_000)
    assert pool._threads
