"""Faults of clients, of the gateway and of the control plane; each test counts lost requests."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.endpoints.harness import (
    Endpoints,
    Load,
    endpoints_in,
    predict,
    stopped,
    versions_of,
    write_version,
)
from tests.waiting import until
from timonel.endpoints import Endpoint
from timonel.endpoints.control.service import SERVICE
from timonel.endpoints.gateway.process import SERVICE as GATEWAY
from timonel.endpoints.gateway.process import runtime_dir
from timonel.endpoints.gateway.xds import MAX_HEAP_BYTES
from timonel.endpoints.spec import service_name
from timonel.processes.ports import PortReservation
from timonel.storage import Workspace, find_workspace

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

MODELS = {1: 1}

HEAD = b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: localhost\r\n"
FLOOD_S = 3.0


@pytest.fixture
def endpoint(endpoints: Endpoints) -> Endpoint:
    """An endpoint with a replica and the usual limits."""
    found = endpoints.deploy("digits/1", min_replicas=1, max_replicas=3)
    limits = {"header_timeout_s": 2.0, "max_held": 100}
    found.change("limits", limits=limits)
    found.wait()
    return found


def connect(endpoint: Endpoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", endpoint.spec.port), timeout=20)


def resident(endpoints: Endpoints) -> int:
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in endpoints.pids(GATEWAY))


def trickle(clients: list[socket.socket], data: bytes, limit_s: float) -> list[bytes]:
    """Send data byte by byte over all connections; return how the gateway ended each of them."""
    ends: dict[int, bytes] = {}
    deadline, sent = time.monotonic() + limit_s, 0
    while len(ends) < len(clients):
        assert time.monotonic() < deadline, f"{len(clients) - len(ends)} connections are left"
        for number, client in enumerate(clients):
            if number in ends:
                continue
            client.settimeout(0)
            try:
                client.send(data[sent % len(data) : sent % len(data) + 1])
                ends[number] = client.recv(1000)
            except BlockingIOError:
                continue
            except OSError:
                ends[number] = b""
        sent += 1
        time.sleep(0.05)
    return list(ends.values())


def test_headers_byte_by_byte_end_after_the_time_limit(endpoint: Endpoint) -> None:
    with Load(endpoint, 2) as load, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(endpoint)) for _ in range(200)]
        begun = time.monotonic()
        ends = trickle(clients, HEAD + b"X-Slow: " + b"a" * 10_000, 20)
        assert time.monotonic() - begun > 1.5
        assert all(end == b"" or end.startswith(b"HTTP/1.1 408") for end in ends), ends[0]
        load.more()
    assert load.failures == []


@pytest.mark.soak
def test_bodies_byte_by_byte_end_after_the_time_limit(endpoint: Endpoint) -> None:
    limits = {**endpoint.spec.limits.model_dump(), "timeout_s": 15.0}
    endpoint.change("short", limits=limits)
    with Load(endpoint, 2) as load:
        until(lambda: _timeout_applies(endpoint), 90)
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(endpoint)) for _ in range(100)]
            for client in clients:
                client.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
            ends = trickle(clients, b"1", 90)
            codes = {end.split(b" ")[1] for end in ends if end}
            assert codes <= {b"408", b"504"}, codes
        load.more()
    assert load.failures == []


def _timeout_applies(endpoint: Endpoint) -> bool:
    """Ask for a computation of 20 seconds."""
    answer = predict(endpoint, 21.0)
    assert answer.status_code in (200, 504), answer.text
    return answer.status_code == 504


def test_connections_over_the_limit_are_closed(endpoint: Endpoint) -> None:
    endpoint.change("few", limits={"max_connections": 3})

    def are_open() -> list[bool]:
        """Return which of four connections the gateway keeps open for a moment."""
        with contextlib.ExitStack() as clients:
            connections = [clients.enter_context(connect(endpoint)) for _ in range(4)]
            found = []
            for connection in connections:
                connection.settimeout(1)
                try:
                    found.append(connection.recv(1) != b"")
                except TimeoutError:
                    found.append(True)
                except ConnectionResetError:
                    found.append(False)
            return found

    until(lambda: sum(are_open()) == 3, seen=are_open)


def test_headers_over_the_limit_are_refused(endpoint: Endpoint) -> None:
    with Load(endpoint, 2) as load:
        assert predict(endpoint, headers={"x-large": "a" * 100_000}).status_code == 431
        many = {f"x-{number}": "a" for number in range(300)}
        assert predict(endpoint, headers=many).status_code == 431
        load.more()
    assert load.failures == []


def test_large_bodies_are_refused_in_bounded_memory(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    url, body = f"{endpoint.url}/v1/models/digits:predict", b" " * 40_000_000
    with Load(endpoint, 2) as load:
        before = resident(endpoints)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(httpx.post, url, content=body, timeout=60) for _ in range(16)]
            most = before
            while not all(each.done() for each in asked):
                most = max(most, resident(endpoints))
                time.sleep(0.01)
        assert [each.result().status_code for each in asked] == [413] * 16
        # 320 MB at once, of which each connection buffers some MiB.
        assert most - before < 100_000_000
        load.more()
    assert load.failures == []


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)
_PATH = b"/v1/models/digits:predict"
# :method POST, :scheme http; :path and :authority as literals without indexing.
BLOCK = b"\x83\x86\x04" + bytes([len(_PATH)]) + _PATH + b"\x01\x09localhost"


def flood(endpoint: Endpoint, *, reset: bool) -> tuple[int, int]:
    """Open streams as fast as possible; return the numbers of streams and of connections."""
    streams = connections = 0
    deadline = time.monotonic() + FLOOD_S
    while time.monotonic() < deadline:
        connections += 1
        with connect(endpoint) as client:
            client.settimeout(1)
            with contextlib.suppress(OSError):
                client.sendall(PREFACE)
                for first in range(1, 100_000, 200):
                    if time.monotonic() > deadline:
                        break
                    ids = range(first, first + 200, 2)
                    data = b"".join(
                        frame(1, 4, each, BLOCK)
                        + (frame(3, 0, each, b"\0\0\0\x08") if reset else b"")
                        for each in ids
                    )
                    client.sendall(data)
                    streams += len(ids)
    return streams, connections


@pytest.mark.parametrize("reset", [False, True], ids=["streams", "resets"])
def test_a_flood_of_http2_does_not_stop_others(
    endpoints: Endpoints, endpoint: Endpoint, *, reset: bool
) -> None:
    pids = endpoints.pids(GATEWAY)
    with Load(endpoint, 2) as load:
        with ThreadPoolExecutor(2) as pool:
            floods = [pool.submit(flood, endpoint, reset=reset) for _ in range(2)]
            answered = load.answered
            streams = sum(each.result()[0] for each in floods)
            during = load.answered - answered
        load.more()
    assert load.failures == []
    assert streams > 1000
    assert during > 0, f"{during} answers during {streams} streams"
    assert endpoints.pids(GATEWAY) == pids
    assert resident(endpoints) < MAX_HEAP_BYTES


@pytest.mark.soak
def test_requests_beyond_the_limit_of_held_ones_are_refused_at_once(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    endpoints.to_zero(endpoint)
    supervisor = endpoints.supervisor(service_name("digits", 1))
    with ThreadPoolExecutor(300) as pool:
        with stopped(supervisor):  # no replica starts
            asked = [pool.submit(predict, endpoint) for _ in range(300)]
            until(lambda: sum(each.done() for each in asked) >= 200, 60)
            refused = [each.result() for each in asked if each.done()]
            assert [each.status_code for each in refused] == [503] * 200
            found = {(each.headers.get("retry-after"), each.text) for each in refused}
            assert found == {("1", '{"error": "100 requests wait for a replica already"}')}
        codes = collections.Counter(each.result().status_code for each in asked)
    assert codes == {200: 100, 503: 200}


def test_a_request_that_waits_too_long_gets_504(endpoints: Endpoints, endpoint: Endpoint) -> None:
    short = {**endpoint.spec.limits.model_dump(), "timeout_s": 2.0}
    endpoint.change("short", limits=short)
    endpoints.to_zero(endpoint)
    with stopped(endpoints.supervisor(service_name("digits", 1))):
        assert predict(endpoint).status_code == 504
    until(lambda: predict(endpoint).status_code == 200)


def test_a_client_that_leaves_is_held_no_longer(endpoints: Endpoints, endpoint: Endpoint) -> None:
    endpoints.to_zero(endpoint)
    supervisor = endpoints.supervisor(service_name("digits", 1))
    with stopped(supervisor):
        with connect(endpoint) as client:
            client.sendall(HEAD + b"Content-Length: 21\r\n\r\n" + b'{"instances": [1.0]} ')
            until(lambda: endpoint.status.versions[1].held == 1)
        until(lambda: endpoint.status.versions[1].held == 0, 20)
    assert versions_of([predict(endpoint)]) == {"1": 1}


def test_a_removed_socket_of_the_activator_is_created_again(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    endpoints.to_zero(endpoint)
    path = runtime_dir(endpoints.workspace.endpoints) / "activator.sock"
    path.unlink()
    until(path.exists, 10)
    assert versions_of([predict(endpoint) for _ in range(3)]) == {"1": 3}


@pytest.mark.soak
def test_a_stopped_control_plane_stops_no_traffic(endpoints: Endpoints, endpoint: Endpoint) -> None:
    (pid,) = endpoints.pids(SERVICE)
    with Load(endpoint) as load:
        os.kill(pid, signal.SIGSTOP)
        try:
            end = time.monotonic() + 20
            until(lambda: time.monotonic() > end)
            load.more(50)
        finally:
            os.kill(pid, signal.SIGCONT)
        before = endpoint.status.at
        until(lambda: endpoint.status.at > before)
        load.more()
    assert load.failures == []
    assert endpoints.pids(SERVICE) == [pid]


@pytest.mark.soak
def test_a_second_control_plane_gives_up(endpoints: Endpoints, endpoint: Endpoint) -> None:
    (pid,) = endpoints.pids(SERVICE)
    with PortReservation(1) as reserved:
        port = next(iter(reserved)).rpartition(":")[2]
    with Load(endpoint, 2) as load:
        second = subprocess.run(
            [
                sys.executable,
                "-m",
                "timonel.endpoints.control",
                endpoints.workspace.uri,
                "127.0.0.1",
                port,
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        load.more()
    assert second.returncode == 1
    assert "another control plane runs this workspace's endpoints" in second.stderr
    assert "Traceback" not in second.stderr
    assert load.failures == []
    assert endpoints.pids(SERVICE) == [pid]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Workspace]:
    """A workspace whose documents of endpoints are on a file system of 256 KiB."""
    workspace = find_workspace(tmp_path / ".timonel")
    write_version(workspace, 1)
    workspace.endpoints.mkdir(mode=0o700, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", str(workspace.endpoints)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield workspace
    finally:
        subprocess.run(["umount", "-l", str(workspace.endpoints)], check=True)


def test_a_full_disk_stops_no_traffic(small_disk: Workspace) -> None:
    with endpoints_in(small_disk) as made:
        endpoint = made.deploy("digits/1")
        filler = small_disk.endpoints / "filler"
        with Load(endpoint, 2) as load:
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * 4096)
            (replica,) = made.engine.service(SERVICE).replicas

            def complaints() -> list[str]:
                return [line for line in endpoint.log(SERVICE, replica.name) if "No space" in line]

            until(complaints)
            load.more(2000)
            known = complaints()
            # Once for each file.
            assert len(known) == len({line.partition("ERROR")[2] for line in known}) <= 2, known
            filler.unlink()
            before = endpoint.status.at
            until(lambda: endpoint.status.at > before)
            load.more()
        assert load.failures == []


def test_a_configuration_that_envoy_refuses_is_reported(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    folder = endpoints.workspace.endpoints / ".gateway" / "routes-digits"
    aside = folder / ".broken"
    aside.write_text("{")
    aside.replace(folder / "current.json")
    until(lambda: "Envoy refuses" in (endpoint.status.message or ""), 20)
    assert "rds.routes-digits" in (endpoint.status.message or "")
    assert predict(endpoint).status_code == 200  # as before
    endpoint.split(labels={"stable": 1})
    until(lambda: endpoint.status.message is None, 20, seen=lambda: endpoint.status.message)
    endpoint.split(plain=True)
