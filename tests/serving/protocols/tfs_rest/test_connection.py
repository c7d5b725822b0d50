"""Connections without a socket: what is answered directly is what ASGI would have answered."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from tests.serving.protocols.tfs_rest.options import rest_api, rest_options
from tests.serving.transport import Transport
from timonel.serving.asgi import Router
from timonel.serving.auth.connection_limits import http_protocol
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.context import Correlation
from timonel.serving.manager.catalogue import Catalogue, ModelSpec, Servable
from timonel.serving.protocols.tfs_rest import connection
from timonel.serving.protocols.tfs_rest.connection import Head, predict_protocol, read_head
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings.auth import LimitSettings
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import HTTP_STATUS, Code, StatusError
from timonel.serving.telemetry.monitor import Monitor


class Model(LoadedModel):
    """Doubles, when it is let; refuses, and fails at, some numbers."""

    def __init__(self):
        x = TensorSpec("x:0", "DT_FLOAT", (-1, -1))
        i = TensorSpec("i:0", "DT_INT32", (-1,))
        self.signatures = {
            "serving_default": Signature("serving_default", {"x": x}, {"y": x}),
            "two": Signature("two", {"x": x, "i": i}, {"y": x, "i": i}, "other/method"),
        }
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.began = threading.Event()

    def run(self, signature, inputs, outputs=None):
        self.began.set()
        assert self.may_go_on.wait(60)
        if (inputs["x"] == 13).any():
            raise StatusError(Code.OUT_OF_RANGE, "thirteen")
        if (inputs["x"] == 14).any():
            raise ZeroDivisionError
        return {"y": inputs["x"] * 2, "i": inputs.get("i")} if "i" in inputs else {
            "y": inputs["x"] * 2
        }  # fmt: skip

    def close(self):
        pass


async def until(holds):
    async with asyncio.timeout(30):
        for _ in iter(holds, True):
            await asyncio.sleep(0.001)


class Wire:
    """A connection to a server of one model; inside a running event loop."""

    def __init__(self, *, direct=True, limits=None, max_body=None, options=None, cls=None):
        self.model = Model()
        self.loaded = scheduled(self.model, AdaptiveBatching(assumed=("*",), slots=1))
        self.servable = Servable("m", 3, self.loaded)
        catalogue = Catalogue({"m": {}})
        catalogue.publish("m", {3: self.servable}, ())
        self.monitor = Monitor()
        self.pool = ThreadPoolExecutor(1)
        self.seen = []
        options = {"max_body": max_body, **(options or {})}
        api = rest_api(catalogue, self.pool, self.monitor, **options)
        rest = Router(api.routes())

        async def app(scope, receive, send):
            self.seen.append(scope["raw_path"])
            await rest(scope, receive, send)

        config = uvicorn.Config(app, log_config=None, lifespan="off", access_log=False)
        config.load()
        http = http_protocol(limits or LimitSettings())
        if direct:
            http = predict_protocol(http, api)
        self.state = ServerState()
        self.protocol = http(config, self.state, {}, asyncio.get_running_loop())
        self.transport = Transport()
        self.protocol.connection_made(self.transport)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.model.may_go_on.set()
        if not self.transport.closed:
            self.transport.close()
        self.protocol.connection_lost(None)
        self.pool.shutdown()
        self.loaded.close()

    def send(self, data):
        if not self.transport.closed:
            self.protocol.data_received(data)

    async def answers(self, count):
        """Return the first answers, as they were written."""
        await until(lambda: len(split(self.transport.written)) >= count or self.transport.closed)
        return split(self.transport.written)


def split(written):
    """Cut what was written into answers; half of one is left out."""
    found = []
    while b"\r\n\r\n" in written:
        head, _, rest = written.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(x[16:]) for x in lines if x.startswith(b"content-length: ")), 0)
        if len(rest) < length:
            break
        if not head.startswith(b"HTTP/1.1 100 "):
            found.append((head, rest[:length]))
        written = rest[length:]
    return found


def request(body, target="/v1/models/m:predict", headers=()):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (f"POST {target} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def ask(*requests, pieces=None, **options):
    """Send requests at once, or in given pieces; return the answers and what ASGI was asked."""

    async def main():
        with Wire(**options) as wire:
            for piece in pieces or [b"".join(requests)]:
                wire.send(piece)
                await asyncio.sleep(0)
            found = await wire.answers(len(requests))
            return found, wire.seen, wire.transport.closed

    return asyncio.run(main())


LARGE = {"instances": [[1.5] * 30000]}
LONG = {"instances": [[float(n) for n in range(500)]]}
BODIES = [
    {"instances": [[1, 2.5], [3, 4]]},
    {"inputs": [[1, 2]]},
    {"instances": [{"x": [1, 2]}]},
    {"signature_name": "two", "instances": [{"x": [1, 2], "i": 5}, {"x": [3, 4], "i": 6}]},
    {"signature_name": "two", "inputs": {"x": [[1]], "i": [7]}},
    LONG,
    LARGE,
    {"instances": [[1.5] * 30000, [1]]},
    {"instances": [[1], [1, 2]]},
    {"instances": ["a"]},
    {"instances": [[True]]},
    {"instances": []},
    {"instances": 1},
    {},
    [],
    b"",
    b"{",
    b'{"instances": [[NaN]]}',
    b'{"instances": [[1e999]]}',
    b"\xff\xfe",
    {"signature_name": "none", "instances": [[1]]},
    {"signature_name": 5, "instances": [[1]]},
    {"instances": [[13]]},
    {"instances": [[14]]},
    {"instances": [[1]], "inputs": [[1]]},
]
TARGETS = [
    "/v1/models/m:predict",
    "/v1/models/m/versions/3:predict",
    "/v1/models/m/versions/4:predict",
    "/v1/models/other:predict",
    "/v1/models/m/labels/none:predict",
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body)[:30])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"extensions": False, "check_method_names": True, "timeout_s": 30.0},
        {"cors": True},
    ],
    ids=["timonel", "tensorflow-serving", "cors"],
)
def test_answers_are_those_of_asgi(body, options):
    options = rest_options(**options)
    direct, seen, _ = ask(request(body), options=options)
    expected, asked, _ = ask(request(body), options=options, direct=False)
    assert direct == expected
    assert len(direct) == len(asked) == 1
    assert seen == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "image/png"])
def test_answers_are_those_of_asgi_by_target_and_content_type(target, kind):
    sent = request(LONG, target, (f"Content-Type: {kind}",))
    direct, seen, _ = ask(sent)
    expected, _, _ = ask(sent, direct=False)
    assert direct == expected
    assert seen == []


OTHERS = [
    b"GET /v1/models/m HTTP/1.1\r\nHost: x\r\n\r\n",
    request({"instances": [[5]]}, headers=("Expect: 100-continue",)),
    request({"instances": [[6]]}, "/v1/models/m:classify"),
    (
        b"POST /v1/models/m:predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'17\r\n{"instances": [[1, 2]]}\r\n0\r\n\r\n'
    ),
]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_answers_come_in_order_however_requests_are_cut(data):
    chosen = data.draw(
        st.lists(
            st.sampled_from([*(request(body) for body in BODIES[:16]), *OTHERS]),
            min_size=1,
            max_size=6,
        )
    )
    whole = b"".join(chosen)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=6).map(sorted))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True) if a < b]
    direct, _, closed = ask(*chosen, pieces=pieces)
    expected, _, also_closed = ask(*chosen, pieces=pieces, direct=False)
    assert direct == expected
    assert closed == also_closed


def test_bodies_beyond_a_limit_are_left():
    _, seen, _ = ask(request({"instances": [[1]]}), max_body=10)
    assert seen == [b"/v1/models/m:predict"]


def test_requests_are_counted_with_their_codes():
    async def main():
        with Wire() as wire:
            for body in ({"instances": [[1], [2]]}, {"instances": [[13]]}, b"{"):
                wire.send(request(body))
                await wire.answers(1)
                wire.transport.written = b""
            return [(each.key.code, each.key.version, each.rows) for each in wire.monitor.recent()]

    assert asyncio.run(main()) == [
        (Code.OK, 3, 2),
        (Code.OUT_OF_RANGE, 3, 1),
        (Code.INVALID_ARGUMENT, None, 0),
    ]


async def occupied(wire):
    """Send a request that the model is busy with."""
    wire.model.began.clear()
    wire.model.may_go_on.clear()
    wire.send(request({"instances": [[1]]}))
    assert await asyncio.to_thread(wire.model.began.wait, 60)


def test_what_comes_meanwhile_waits_and_is_read_no_further():
    async def main():
        with Wire() as wire:
            await occupied(wire)
            wire.send(request({"instances": [[2]]}) + request({"instances": [[3]]})[:30])
            assert not wire.transport.is_read
            wire.model.may_go_on.set()
            assert len(await wire.answers(2)) == 2
            assert wire.transport.is_read
            wire.send(request({"instances": [[3]]})[30:])
            return [json.loads(body)["predictions"] for _, body in await wire.answers(3)]

    assert asyncio.run(main()) == [[[2.0]], [[4.0]], [[6.0]]]


def test_a_request_in_progress_is_answered_before_a_refusal():
    async def main():
        with Wire(limits=LimitSettings(max_receiving=70_000)) as wire:
            await occupied(wire)
            wire.send(bytes(100_000))
            wire.model.may_go_on.set()
            await until(wire.transport.is_closing)
            return split(wire.transport.written)

    ((head, body),) = asyncio.run(main())
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in head.lower()
    assert json.loads(body) == {"predictions": [[2.0]]}


def test_requests_before_a_bad_one_are_answered():
    good = request({"instances": [[1]]}) + request({"instances": [[2]]})
    found, _, closed = ask(good, b"\x16\x03\x01junk", b"", pieces=[good + b"\x16\x03\x01junk"])
    assert [head.split()[1] for head, _ in found] == [b"200", b"200", b"400"]
    assert closed


def test_who_is_gone_leaves_the_queue_and_lets_the_version_go():
    async def main():
        with Wire() as first, Wire() as second:
            await occupied(first)
            # A second one of the same version, which waits.
            second.protocol.api = first.protocol.api
            second.send(request({"instances": [[2]]}))
            assert first.loaded.queued == 1
            second.transport.close()
            second.protocol.connection_lost(None)
            assert first.loaded.queued == 0
            idle = threading.Event()
            first.servable.retire(idle.set)
            assert not idle.is_set()
            first.model.may_go_on.set()
            await first.answers(1)
            assert idle.is_set()
            return [each.key.code for each in first.monitor.recent()]

    assert asyncio.run(main()) == [Code.CANCELLED, Code.OK]


@pytest.mark.parametrize("end", ["gone", "late"])
def test_one_given_up_while_its_body_is_read_lets_the_version_go(end):
    async def main():
        with Wire(options=rest_options(timeout_s=0.02 if end == "late" else None)) as wire:
            may_read = threading.Event()
            wire.model.began.clear()
            wire.pool.submit(may_read.wait)
            wire.send(request(LARGE))
            if end == "late":
                ((head, _),) = await wire.answers(1)
                assert head.startswith(b"HTTP/1.1 504 ")
            else:
                wire.transport.close()
                wire.protocol.connection_lost(None)
            may_read.set()
            await asyncio.wrap_future(wire.pool.submit(lambda: None))
            idle = threading.Event()
            wire.servable.retire(idle.set)
            await until(idle.is_set)
            assert not wire.model.began.is_set()
            return [each.key.code for each in wire.monitor.recent()]

    codes = [Code.CANCELLED] if end == "gone" else [Code.DEADLINE_EXCEEDED]
    assert asyncio.run(main()) == codes


def test_one_that_takes_too_long_is_answered_so():
    async def main():
        with Wire(options=rest_options(timeout_s=0.5)) as wire:
            await occupied(wire)
            ((head, body),) = await wire.answers(1)
            wire.model.may_go_on.set()
            wire.send(request({"instances": [[2]]}))
            return head, json.loads(body), (await wire.answers(2))[1][1]

    head, body, after = asyncio.run(main())
    assert head.startswith(b"HTTP/1.1 504 ")
    assert body == {"error": "Timed out waiting for notification"}
    assert json.loads(after) == {"predictions": [[4.0]]}


@pytest.mark.parametrize("arrives", ["whole", "late"])
def test_the_last_request_is_answered_before_the_end(arrives):
    async def main():
        with Wire() as wire:
            if arrives == "whole":
                await occupied(wire)
            else:
                sent = request({"instances": [[1]]})
                wire.send(sent[:-3])
            wire.protocol.shutdown()
            assert not wire.transport.closed
            wire.model.may_go_on.set()
            if arrives == "late":
                wire.send(sent[-3:])
            ((head, body),) = await wire.answers(1)
            return head, json.loads(body), wire.transport.closed

    head, body, closed = asyncio.run(main())
    assert b"\r\nconnection: close" in head
    assert body == {"predictions": [[2.0]]}
    assert closed


def test_an_idle_connection_ends_at_once():
    async def main():
        with Wire() as wire:
            wire.send(request({"instances": [[1]]}))
            await wire.answers(1)
            wire.protocol.shutdown()
            return wire.transport.closed

    assert asyncio.run(main())


def test_a_body_must_arrive_in_time():
    async def main():
        with Wire(limits=LimitSettings(body_s=0.05)) as wire:
            wire.send(request({"instances": [[1]]}))
            await wire.answers(1)
            await asyncio.sleep(0.1)  # an idle connection stays
            assert not wire.transport.closed
            wire.send(request({"instances": [[1]]})[:-3])
            return (await wire.answers(2))[1], wire.transport.closed

    (head, body), closed = asyncio.run(main())
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body) == {"error": "the request took too long to arrive"}
    assert closed


def test_an_idle_connection_is_closed_after_its_time():
    async def main():
        with Wire() as wire:
            wire.protocol.timeout_keep_alive = 0.05
            wire.send(request({"instances": [[1]]}))
            await wire.answers(1)
            await until(wire.transport.is_closing)

    asyncio.run(main())


def test_a_client_that_reads_nothing_is_left_to_asgi():
    async def main():
        with Wire() as wire:
            wire.protocol.pause_writing()
            wire.send(request({"instances": [[1]]}))
            await asyncio.sleep(0.05)
            assert wire.transport.written == b""
            wire.protocol.resume_writing()
            return len(await wire.answers(1)), wire.seen

    assert asyncio.run(main()) == (1, [b"/v1/models/m:predict"])


def test_heads_are_looked_at_up_to_their_limit():
    padding = "X-Long: " + "x" * 1500
    small = LimitSettings(max_head=1024)
    found, seen, closed = ask(request({"instances": [[1]]}, headers=(padding,)), limits=small)
    assert found[0][0].startswith(b"HTTP/1.1 431 ")
    assert (seen, closed) == ([], True)


def test_a_body_goes_with_its_connection_without_garbage_collection():
    async def connect():
        gc.disable()
        with Wire(direct=False) as wire:
            wire.send(
                b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n"
            )
            for _ in range(3):
                wire.send(bytes(1000))
                await asyncio.sleep(0.01)
        await until(lambda: not wire.state.tasks)
        request = weakref.ref(wire.protocol.cycle)
        wire.protocol.cycle = wire.protocol._answered = None
        await asyncio.sleep(0)
        assert request() is None, gc.get_referrers(request())

    try:
        asyncio.run(connect())
    finally:
        gc.enable()


def test_what_is_used_of_uvicorn_is_there():
    kind = connection._PredictHttp
    names = ("_unset_keepalive_if_required", "on_response_complete", "shutdown")
    assert all(callable(getattr(kind, name)) for name in names)
    assert all(code in connection.STATUS_LINE for code in HTTP_STATUS.values())


TARGET = "/v1/models/m:predict"
LENGTH = "Content-Length: 7"


def head_of(*headers, line=f"POST {TARGET} HTTP/1.1"):
    return read_head("\r\n".join((line, "Host: x", *headers)).encode("latin-1"))


@pytest.mark.parametrize(
    ("target", "spec"),
    [
        (TARGET, ModelSpec("m")),
        ("/V1/MODELS/M:predict", ModelSpec("M")),
        ("/v1/models/a%20b:predict", ModelSpec("a b")),
        ("/v1/models/m/versions/12:predict", ModelSpec("m", 12)),
        ("/v1/models/m/labels/best:predict", ModelSpec("m", None, "best")),
        ("/v1/models/m?a=b:predict", ModelSpec("m?a=b")),
    ],
)
def test_a_prediction_is_read(target, spec):
    assert head_of(LENGTH, line=f"POST {target} HTTP/1.1") == Head(
        "predict", spec, 7, "", None, b"x"
    )


@pytest.mark.parametrize("action", ["predict", "classify", "regress"])
def test_all_actions_of_a_model_are_read(action):
    head = head_of(LENGTH, line=f"POST /v1/models/m:{action} HTTP/1.1")
    assert head == Head(action, ModelSpec("m"), 7, "", None, b"x")


def test_what_headers_say_is_read():
    head = head_of(
        "CONTENT-length: 70", "content-TYPE: text/plain; charset=utf-8", "Connection: Keep-Alive",
        "Accept: */*", "traceparent: 00-1-2-01", "tracestate: a=b", "X-Any: thing",
    )  # fmt: skip
    trace = Correlation("00-1-2-01", "a=b")
    assert head == Head("predict", ModelSpec("m"), 70, "text/plain; charset=utf-8", trace, b"x")


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Transfer-Encoding: chunked",),
        (LENGTH, "Connection: close"),
        (LENGTH, "Connection: upgrade", "Upgrade: websocket"),
        (LENGTH, "Connection: keep-alive, close"),
        (LENGTH, "Expect: 100-continue"),
        (LENGTH, "Origin: http://localhost"),
        (LENGTH, "Content-Encoding: gzip"),
        (LENGTH, "Transfer-Encoding: chunked"),
        (LENGTH, LENGTH),
        ("Content-Length: -7",),
        ("Content-Length: seven",),
        ("Content-Length: 7, 7",),
        (LENGTH, " folded: more"),
        (LENGTH, "no colon"),
        (LENGTH, "bad name: x"),
    ],
)
def test_what_is_not_one_plain_body_is_left(headers):
    assert head_of(*headers) is None


@pytest.mark.parametrize(
    "line",
    [
        f"GET {TARGET} HTTP/1.1",
        f"post {TARGET} HTTP/1.1",
        f"POST {TARGET} HTTP/1.0",
        f"POST {TARGET} HTTP/2.0",
        f"POST {TARGET}",
        f"POST http://h{TARGET} HTTP/1.1",
        f"POST /prefix{TARGET} HTTP/1.1",
        f"POST {TARGET}/ HTTP/1.1",
        f"POST {TARGET}#part HTTP/1.1",
        "POST /v1/models/m#part:predict HTTP/1.1",
        "POST /v1/models/m:explain HTTP/1.1",
        "POST /v1/models/m/versions/99999999999999999999:predict HTTP/1.1",
        "POST /v2/models/m/infer HTTP/1.1",
        "GET /v1/models/m HTTP/1.1",
        "",
        "\r\n",
    ],
)
def test_what_is_no_prediction_is_left(line):
    assert head_of(LENGTH, line=line) is None


def test_half_a_head_is_left():
    assert read_head(b"POST /v1/models/m:predict HT") is None
