"""Clients that are slow, half gone, silent or many, and what is left of them."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import select
import socket
import struct
import time

import grpc
import numpy as np
import pytest

from tests.serving.asking import server_process
from tests.serving.hardening.harness import (
    GrpcClient,
    RestClient,
    Usage,
    asking,
    once,
    predict_request,
    publish,
    serving,
    settled,
)
from tests.serving.hardening.page import note
from tests.serving.hardening.test_compute import body
from tests.waiting import until
from timonel.serving.settings.auth import AccessSettings, LimitSettings

pytestmark = pytest.mark.soak

CONNECTIONS = 5000
REQUEST = (
    b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 19\r\n\r\n"
    b'{"instances": [10]}'
)


def address(server):
    host, _, port = server.rest_url.rpartition("/")[2].rpartition(":")
    return host, int(port)


def connections(server):
    """Return how many connections to its REST port a server has."""
    held = server_process(server).net_connections("tcp")
    return sum(c.status == "ESTABLISHED" and c.laddr.port == address(server)[1] for c in held)


def connect(server, timeout=30.0):
    return socket.create_connection(address(server), timeout)


def received(connection):
    """Everything until the server closes; what came before a reset counts as well."""
    content = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            content += piece
    return content


@contextlib.contextmanager
def many_descriptors(wanted):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"{wanted} descriptors are not allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("skin", ["REST", "gRPC"])
def test_idle_connections(workspace, m, skin):
    """The server is started with the usual limit of descriptors, and raises it by itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        server_of = serving(workspace, "m")
        server = server_of.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with (
        many_descriptors(CONNECTIONS + 500),
        contextlib.ExitStack() as idle,
        contextlib.ExitStack() as end,
    ):
        end.push(server_of)
        client = (RestClient if skin == "REST" else GrpcClient)(server)
        assert client() == ("OK", 1.0)
        before = Usage.of(server)
        where = address(server) if skin == "REST" else server.grpc_address.rsplit(":", 1)
        for _ in range(CONNECTIONS):
            idle.enter_context(socket.create_connection((where[0], int(where[1])), 30))
        # Accepted, not only in the backlog.
        until(lambda: Usage.of(server).descriptors >= before.descriptors + CONNECTIONS)
        during = Usage.of(server)
        with asking(RestClient(server), GrpcClient(server)) as told:
            until(lambda: told.asked > 300)
        assert told.failed == {}
        assert client() == ("OK", 1.0)
        idle.close()
        after = settled(server, before, 30)
        client.close()
    each_kib = (during.mib - before.mib) * 1024 / CONNECTIONS
    assert each_kib < 60
    assert after.descriptors <= before.descriptors + 2
    note(
        f"{CONNECTIONS} idle connections, {skin}",
        f"{each_kib:.1f} KiB each; beside them {told.asked} requests, 0 failed, "
        f"p99 {told.p99_ms():.0f} ms; {before} before, {after} after",
    )


def test_no_descriptors_left(workspace, m):
    """Where even the hard limit is reached, those who are connected are answered."""
    limit = 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(workspace, "m") as server, contextlib.ExitStack() as idle:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, hard))
        rest, rpc = RestClient(server), GrpcClient(server)
        assert rest() == rpc() == ("OK", 1.0)
        with asking(rest, rpc, pause_s=0.005) as told:
            for _ in range(2 * limit):
                with contextlib.suppress(OSError):
                    idle.enter_context(connect(server, 1))
            asked = told.asked
            until(lambda: told.asked > asked + 200)
        idle.close()
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert told.failed == {}
        until(lambda: once(server)[0] == "OK")
    note(f"{2 * limit} connections with {limit} descriptors", f"{told.asked} requests, 0 failed")


LIMITS = AccessSettings(limits=LimitSettings(head_s=1.0, body_s=2.0, max_body=2**20))


def test_heads_and_bodies_byte_by_byte(workspace, m):
    """Slowloris: each connection is closed in time, and nobody else waits for it."""
    with serving(workspace, "m", access=LIMITS) as server:
        before = Usage.of(server)
        with (
            asking(RestClient(server), GrpcClient(server), pause_s=0.01) as told,
            contextlib.ExitStack() as open_,
        ):
            slow = [open_.enter_context(connect(server)) for _ in range(300)]
            began = time.monotonic()
            endings = [random.Random(n).randrange(1, len(REQUEST) - 1) for n in range(300)]
            heads_end = REQUEST.index(b"{")
            for position in range(max(endings)):
                for connection, ending in zip(slow, endings, strict=True):
                    if position < ending:
                        with contextlib.suppress(OSError):
                            connection.send(REQUEST[position : position + 1])
                if time.monotonic() - began > 5:
                    break
                time.sleep(0.02)
            answers = [received(connection) for connection in slow]
            took_s = time.monotonic() - began
        after = settled(server, before)
    statuses = {answer[9:12] for answer in answers}
    assert statuses <= {b"408", b""}, statuses
    assert heads_end
    assert sum(answer[9:12] == b"408" for answer in answers) > 200
    assert took_s < 15
    assert told.failed == {}
    assert max(told.latencies_s) < 2
    assert after.descriptors <= before.descriptors + 1
    note(
        "300 clients that send byte by byte",
        f"408 or closed after {took_s:.0f} s; {told.asked} requests beside them, 0 failed, "
        f"p99 {told.p99_ms():.0f} ms",
    )


def test_clients_that_never_read(workspace, m):
    """Large answers that nobody takes: memory stays bounded, others are answered."""
    rows = json.dumps({"instances": [1.5] * 100_000}).encode()
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with serving(workspace, "m", access=LIMITS) as server:
        before = Usage.of(server)
        with (
            asking(RestClient(server), GrpcClient(server), pause_s=0.01) as told,
            contextlib.ExitStack() as open_,
        ):
            for _ in range(20):
                deaf = open_.enter_context(socket.socket())
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect(address(server))
                deaf.settimeout(0.5)
                # A pipeline of them, until the server reads no more.
                with contextlib.suppress(OSError):
                    for _ in range(40):
                        deaf.sendall(head % len(rows) + rows)
            during = Usage.of(server)
            asked = told.asked
            until(lambda: told.asked > asked + 100)
            # The system closes them after a minute in which they took nothing.
            until(lambda: connections(server) <= 2, 150)
    assert told.failed == {}
    assert during.mib < before.mib + 400
    note(
        "20 clients that send 40 requests of 0.5 MB and read nothing",
        f"{during.mib - before.mib:.0f} MiB, sent away after a minute; {told.asked} requests "
        "beside them, 0 failed",
    )


def test_connections_that_are_cut_anywhere(workspace, m):
    """Closed, reset, or shut down on one side, after any number of bytes."""
    chance = random.Random(11)
    with serving(workspace, "m") as server:
        before = Usage.of(server)
        with asking(RestClient(server), GrpcClient(server), pause_s=0.002) as told:
            for number in range(3000):
                with connect(server) as connection:
                    connection.sendall(REQUEST[: chance.randrange(len(REQUEST) + 1)])
                    if number % 3 == 0:
                        linger = struct.pack("ii", 1, 0)
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    elif number % 3 == 1:
                        connection.shutdown(socket.SHUT_WR)
                        connection.settimeout(5)
                        received(connection)
        after = settled(server, before)
    assert told.failed == {}
    assert after.descriptors <= before.descriptors + 1
    assert after.mib < before.mib + 30
    note(
        "3000 connections cut after any number of bytes",
        f"{told.asked} requests beside them, 0 failed; {before} before, {after} after",
    )


def test_calls_that_are_cancelled_at_any_time(workspace, m):
    chance = random.Random(12)
    with serving(workspace, "m") as server:
        client = GrpcClient(server)
        request = predict_request(x=np.ones(50_000, np.float32)).SerializeToString()
        with grpc.insecure_channel(server.grpc_address) as channel:
            call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            call(request)
            before = Usage.of(server)
            with asking(client, pause_s=0.002) as told:
                for number in range(2000):
                    if number % 2:
                        future = call.future(request)
                        time.sleep(chance.random() * 0.003)
                        future.cancel()
                    else:
                        with contextlib.suppress(grpc.RpcError):
                            call(request, timeout=chance.random() * 0.004)
        after = settled(server, before)
        assert once(server) == ("OK", 1.0)
    assert told.failed == {}
    assert after.mib < before.mib + 40
    assert after.descriptors <= before.descriptors + 1
    note(
        "2000 calls cancelled or late",
        f"{told.asked} calls beside them, 0 failed; {before} before, {after} after",
    )


def test_the_pool_is_whole_after_requests_that_nobody_waits_for(workspace, m):
    """Clients that leave while their request is computed take no thread with them."""
    publish(workspace.models / "bad", 1, faulty=True)
    with serving(workspace, "m", "bad", compute_threads=4) as server:
        content = body("sleep", 0.3)
        head = (
            b"POST /v1/models/bad:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        )
        for _ in range(40):
            with connect(server) as connection:
                connection.sendall(head % len(content) + content)
                time.sleep(0.01)
        began = time.monotonic()
        until(lambda: once(server) == ("OK", 1.0))
        waited_s = time.monotonic() - began
    note("40 clients gone while a slow model computes", f"others answered after {waited_s:.1f} s")


def test_bodies_beyond_the_limits(workspace, m):
    """Declared, chunked and packed bodies that are too large; heads and targets as well."""
    import gzip

    bomb = gzip.compress(bytes(50 * 2**20))
    post = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\n"
    chunk = b"10000\r\n" + bytes(65536) + b"\r\n"
    cases = {
        b"413": [
            post + b"Content-Length: 99999999999\r\n\r\n",
            post + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 20 + b"0\r\n\r\n",
            post + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb,
        ],
        b"431": [
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 100_000 + b"\r\n\r\n",
        ],
        b"400": [
            post + b"Content-Length: -1\r\n\r\n",
            post + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n1",
            post + b"Content-Length: 99999999999999999999999\r\n\r\n",
            post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            post + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/1.1\r\nA\0B: c\r\n\r\n",
        ],
    }
    with serving(workspace, "m", access=LIMITS) as server:
        before = Usage.of(server)
        for status, requests in cases.items():
            for content in requests:
                for _ in range(10):
                    with connect(server, 10) as connection:
                        with contextlib.suppress(OSError):
                            connection.sendall(content)
                        head = connection.recv(12)
                        assert head[9:12] == status, (content[:80], head)
        after = settled(server, before)
        assert once(server) == ("OK", 1.0)
    assert after.mib < before.mib + 60
    assert after.descriptors <= before.descriptors + 1
    note("oversized heads and bodies, a 50 MiB bomb", f"413, 431, 400; {before}, then {after}")


def test_grpc_bytes_that_are_no_grpc(workspace, m):
    chance = random.Random(13)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    with serving(workspace, "m") as server:
        host, port = server.grpc_address.rsplit(":", 1)
        before = Usage.of(server)
        with asking(GrpcClient(server), pause_s=0.002) as told:
            for number in range(1500):
                junk = chance.randbytes(chance.choice((0, 1, 9, 40, 5000)))
                if number % 2:
                    frame = struct.pack(">I", len(junk))[1:] + bytes([chance.randrange(12)])
                    junk = preface + frame + chance.randbytes(5) + junk
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection((host, int(port)), 5) as connection,
                ):
                    connection.sendall(junk)
                    select.select([connection], [], [], 0.01)
        after = settled(server, before, 60)
    assert told.failed == {}
    assert after.mib < before.mib + 40
    assert after.descriptors <= before.descriptors + 2
    note("1500 connections of no HTTP/2 to the gRPC port", f"{told.asked} calls, 0 failed; {after}")
