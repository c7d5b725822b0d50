"""A model that crashes or hangs while others are asked, and servers that are stopped."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from tests.serving.asking import server_process
from tests.serving.hardening.harness import (
    GrpcClient,
    RestClient,
    Told,
    Usage,
    asking,
    publish,
    serving,
    settings_for,
    settled,
)
from tests.serving.hardening.page import note
from tests.serving.runtimes.python.conftest import write_version
from tests.waiting import until
from timonel.serving.launch import launch
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.settings.runtime import PythonSettings, RuntimeSettings
from timonel.serving.settings.server import RestSettings

pytestmark = pytest.mark.soak

CRASHES = 3
"""Fewer than a parent gives up at."""
LOST = (
    *("ConnectionRefused", "ConnectionReset", "RemoteDisconnected", "BrokenPipe"),
    *("IncompleteRead", "UNAVAILABLE"),
)
"""How clients see a server that is away."""
PYTHON = """
import os, threading

class PythonModel:
    inputs = {"do": ("string", [])}
    outputs = {"pid": ("int64", [])}
    threads = 4

    def predict(self, inputs):
        if inputs["do"].item() == b"exit":
            os._exit(3)
        if inputs["do"].item() == b"hang":
            threading.Event().wait()
        return {"pid": os.getpid()}
"""


@pytest.fixture
def two(workspace):
    publish(workspace.models / "m", 1)
    publish(workspace.models / "bad", 1, faulty=True)
    return workspace


def body(do, x=1.0):
    return json.dumps({"signature_name": "do", "inputs": {"do": do, "x": x}}).encode()


def others(server):
    return [RestClient(server), GrpcClient(server)]


def calm(server, seconds=3.0):
    with asking(*others(server), pause_s=0.005) as told:
        time.sleep(seconds)
    assert told.failed == {}
    return told


def unaffected(before: Told, during: Told) -> None:
    """Another model's clients may not tell that something is wrong."""
    assert during.failed == {}
    # One scheduler's hiccup is no effect; a wait for the broken model would be seconds.
    assert during.p99_ms() < 5 * before.p99_ms() + 250
    assert max(during.latencies_s) < 2.5


@pytest.mark.parametrize("do", ["segfault", "abort", "kill", "exit"])
def test_a_crash_costs_what_is_in_flight_until_the_restart(two, do):
    """The request that crashes is not answered; others fail only while the server is away."""
    away_s = []
    with serving(two, "m", "bad") as server:
        calm(server)
        with asking(*others(server), pause_s=0.005) as during:
            for _ in range(CRASHES):
                asked, first = during.outcomes["OK"], server_process(server)
                until(lambda asked=asked: during.outcomes["OK"] > asked + 20)
                crash = RestClient(server, "bad", body(do))
                outcome, _ = crash()
                crash.close()
                assert outcome.startswith(LOST), outcome
                began = time.monotonic()
                until(lambda: doubled(server))
                away_s.append(time.monotonic() - began)
                assert server_process(server) != first
        after = calm(server)
    assert all(each.startswith(LOST) for each in during.failed), during.failed
    assert during.values.keys() == after.values.keys() == {1.0}
    note(
        f"{CRASHES} crashes of the server's process ({do})",
        f"back after {max(away_s):.1f} s at most; {during.asked} other requests, "
        f"{sum(during.failed.values())} failed, all of them while it was away",
    )


def doubled(server):
    client = RestClient(server, "bad", body("double", 2.0))
    try:
        outcome, _ = answer_of(client)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()
    return outcome


def answer_of(client):
    client._connection.request("POST", client._path, client._body)
    response = client._connection.getresponse()
    content = response.read()
    return response.status == 200, content


def ask_together(server, model, content, requests):
    """Send requests at the same time; return the status and the seconds of each."""

    def ask(_):
        client, began = RestClient(server, model, content), time.monotonic()
        outcome, _ = client()
        client.close()
        return outcome.partition(" ")[0], time.monotonic() - began

    with ThreadPoolExecutor(requests) as pool:
        return list(pool.map(ask, range(requests)))


@pytest.mark.parametrize("requests", [4, 40])
def test_hangs_hold_up_others_for_seconds_only(two, requests):
    """More requests to a model that hangs than there are threads; deadlines hold for them."""
    rest = RestSettings(timeout_s=15.0)
    with serving(two, "m", "bad", rest=rest, drain_s=1.0) as server:
        before = calm(server)
        with asking(*others(server), pause_s=0.005) as during:
            until(lambda: during.asked > 20)
            answers = ask_together(server, "bad", body("wait"), requests)
    assert {status for status, _ in answers} == {"504"}
    assert max(took_s for _, took_s in answers) < 25
    assert during.failed == {}
    assert during.values.keys() == before.values.keys() == {1.0}
    note(
        f"{requests} requests to a model that hangs, beside another",
        f"answered 504 after {max(t for _, t in answers):.1f} s at most; "
        f"the other model: {during.asked} requests, 0 failed, answered after "
        f"{max(during.latencies_s):.1f} s at most",
    )


@pytest.mark.parametrize("do", ["exit", "hang", "kill"])
def test_a_python_model_that_fails_leaves_others_alone(two, do):
    write_version(two.models / "py" / "1", PYTHON)
    python = PythonSettings(allow=("py",), timeout_s=2.0)
    with serving(two, "m", "py", python=python) as server:
        before, usage = calm(server), Usage.of(server)
        first = python_pid(server)
        with asking(*others(server), pause_s=0.005) as during:
            until(lambda: during.asked > 20)
            if do == "kill":
                os.kill(first, signal.SIGKILL)
            else:
                content = json.dumps({"inputs": {"do": do}}).encode()
                answers = ask_together(server, "py", content, 8)
                # What ran too long is not asked for again; what waited behind it may be.
                expected = {"503", "504"} if do == "hang" else {"503"}
                assert {status for status, _ in answers} == expected
            until(lambda: python_pid(server) not in {None, first})
        after = settled(server, usage)
    unaffected(before, during)
    assert after.descriptors <= usage.descriptors
    assert after.processes == usage.processes
    note(
        f"a Python model that fails ({do}) beside another model",
        f"restarted; the other model: {during.asked} requests, 0 failed",
    )


def python_pid(server):
    """Return the process of the Python model, which says so itself."""
    client = RestClient(server, "py", json.dumps({"inputs": {"do": "pid"}}).encode())
    found, content = answer_of(client)
    client.close()
    return json.loads(content)["outputs"] if found else None


def test_a_parent_that_is_killed_leaves_nothing(two):
    """SIGKILL under load, with one model hanging: no process outlives it, its ports are free."""
    for round_ in range(3):
        settings = settings_for(two, "m", "bad", drain_s=1.0)
        server = launch(settings, two)
        process = server_process(server)
        hanging = threading.Thread(target=RestClient(server, "bad", body("wait")))
        hanging.start()
        with asking(*others(server), pause_s=0.02) as told:
            until(lambda told=told: told.asked > 20)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            _, alive = psutil.wait_procs([process], timeout=15)
        hanging.join(10)
        assert not alive, round_
        for address in (server.rest_url.rpartition("/")[2], server.grpc_address):
            host, _, port = address.rpartition(":")
            with socket.socket() as taken:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind((host, int(port)))
    note("SIGKILL of the parent under load, a model hanging", "3 times nothing outlived it")


@pytest.mark.parametrize("batching", [True, False])
def test_a_stop_under_load_answers_what_was_accepted(two, batching):
    """Clients see answers, then refused connections; never half an answer or an error."""
    runtime = {"name": "hard"} | (
        {"batching": AdaptiveBatching(assumed=("*",))} if batching else {}
    )
    accepted = 0
    for _ in range(5):
        with serving(two, "m", runtime=RuntimeSettings(**runtime)) as server:
            clients = [make(server) for make in (RestClient, GrpcClient) for _ in range(3)]
            with asking(*clients) as told:
                until(lambda told=told: told.asked > 60)
                assert server.stop() == 0
        # A connection that is closed between two requests is an end in good order; keep-alive
        # races are for clients to repeat, and say so by having got no byte. CANCELLED is what
        # gRPC's core says of calls that it has not handed over when it stops.
        orderly = (
            "ConnectionRefused",
            "RemoteDisconnected",
            "ConnectionReset",
            "UNAVAILABLE",
            "CANCELLED",
        )
        assert not {each for each in told.failed if not each.startswith((*orderly, "BrokenPipe"))}
        accepted += told.outcomes["OK"]
    note(
        f"SIGTERM under load, {'' if batching else 'no '}batching",
        f"5 times exit 0; {accepted} answers, none broken off",
    )


def test_answers_that_were_begun_at_the_stop_are_whole(two):
    """Slow requests in flight at SIGTERM, as many as there are: each one has its answer."""
    with serving(two, "bad", drain_s=60.0) as server:
        answers, lock = [], threading.Lock()

        def ask(seconds):
            client = RestClient(server, "bad", body("sleep", seconds))
            outcome = answer_of(client)
            client.close()
            with lock:
                answers.append(outcome)

        asked = [threading.Thread(target=ask, args=(0.2 + 0.05 * n,)) for n in range(20)]
        for each in asked:
            each.start()
        time.sleep(0.3)
        assert server.stop() == 0
        for each in asked:
            each.join(30)
    assert [found for found, _ in answers] == [True] * 20, answers
    assert np.isclose(max(json.loads(c)["outputs"] for _, c in answers), 1.15)
