"""A model that crashes, hangs or is stopped while others are asked."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time

import numpy as np
import psutil
import pytest

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
from tests.waiting import until
from timonel.serving.handle import launch
from timonel.serving.settings import RestSettings, RuntimeSettings
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.settings.runtime import ComputeSettings

pytestmark = pytest.mark.soak

DEATHS = 30
MOURNED = "Restarting in"


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
def test_crashes_cost_their_own_requests_only(two, do):
    """Each death is answered once for each of its requests, and the version comes back."""
    with serving(two, "m", "bad", isolation="process") as server:
        before, usage = calm(server), Usage.of(server)
        crash = RestClient(server, "bad", body(do))
        answers = []
        with asking(*others(server), pause_s=0.005) as during:
            until(lambda: during.asked > 20)
            began = time.monotonic()
            while len(answers) < 3 or time.monotonic() - began < 6:
                outcome, _ = crash()
                answers.append(outcome)
                time.sleep(0.02)
        crash.close()
        assert {answer.partition(" ")[0] for answer in answers} == {"503"}, set(answers)
        until(lambda: doubled(server))
        deaths = server.logs().count(MOURNED)
        after = settled(server, usage)
    unaffected(before, during)
    assert deaths >= 2
    assert after.descriptors <= usage.descriptors + 2
    assert after.processes == usage.processes
    note(
        f"a model that dies ({do}) beside another",
        f"{deaths} deaths; the other model: {during.asked} requests, 0 failed, p99 "
        f"{before.p99_ms():.0f} ms before, {during.p99_ms():.0f} ms meanwhile",
    )


def doubled(server):
    client = RestClient(server, "bad", body("double", 2.0))
    try:
        outcome, _ = answer_of(client)
    finally:
        client.close()
    return outcome


def answer_of(client):
    client._connection.request("POST", client._path, client._body)
    response = client._connection.getresponse()
    content = response.read()
    return response.status == 200, content


@pytest.mark.parametrize("requests", [4, 40])
def test_hangs_cost_their_own_requests_only(two, requests):
    """More requests to a model that hangs than there are threads; deadlines hold for them."""
    with serving(
        two,
        "m",
        "bad",
        isolation="process",
        compute=ComputeSettings(hang_timeout_s=6.0),
        rest=RestSettings(timeout_s=3.0),
    ) as server:
        before = calm(server)
        answers, lock = [], threading.Lock()

        def hang():
            client, began = RestClient(server, "bad", body("hang")), time.monotonic()
            outcome, _ = client()
            client.close()
            with lock:
                answers.append((outcome, time.monotonic() - began))

        hanging = [threading.Thread(target=hang) for _ in range(requests)]
        with asking(*others(server), pause_s=0.005) as during:
            until(lambda: during.asked > 20)
            for each in hanging:
                each.start()
            for each in hanging:
                each.join(60)
            assert len(answers) == requests
            # The process is replaced, and answers again.
            until(lambda: doubled(server))
    codes = {outcome.partition(" ")[0] for outcome, _ in answers}
    assert codes <= {"504", "503"}, answers
    assert max(took_s for _, took_s in answers) < 10
    unaffected(before, during)
    note(
        f"{requests} requests to a model that hangs, beside another",
        f"answered {', '.join(sorted(codes))} after {max(t for _, t in answers):.1f} s at most; "
        f"the other model: {during.asked} requests, 0 failed, p99 {before.p99_ms():.0f} ms "
        f"before, {during.p99_ms():.0f} ms meanwhile",
    )


def test_a_compute_process_that_is_stopped(two):
    """SIGSTOP: it answers nothing, and is no more than slow once it is let go on."""
    with serving(
        two,
        "m",
        "bad",
        isolation="process",
        compute=ComputeSettings(hang_timeout_s=4.0),
        rest=RestSettings(timeout_s=2.0),
    ) as server:
        before = calm(server)
        pid = process_of(server, "bad")
        with asking(*others(server), pause_s=0.005) as during:
            until(lambda: during.asked > 20)
            # For a moment: the request waits, and is answered.
            os.kill(pid, signal.SIGSTOP)
            timer = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
            timer.start()
            assert doubled(server)
            timer.join()
            assert process_of(server, "bad") == pid
            # For ever: the deadline, then the process is taken for hung and replaced.
            os.kill(pid, signal.SIGSTOP)
            client = RestClient(server, "bad", body("double", 2.0))
            assert client()[0].startswith("504")
            client.close()
            until(lambda: doubled(server))
            assert process_of(server, "bad") != pid
            until(lambda: not psutil.pid_exists(pid))
    unaffected(before, during)
    note("SIGSTOP of a compute process", f"replaced; {during.asked} requests to others, 0 failed")


def process_of(server, model):
    """Return the process of a model; the one that computes for it says so itself."""
    client = RestClient(server, model, body("pid"))
    try:
        found, content = answer_of(client)
    finally:
        client.close()
    assert found, content
    return int(json.loads(content)["outputs"])


def test_a_warm_parent_that_is_stopped_or_killed_takes_no_answer_with_it(two):
    with serving(two, "m", isolation="process") as server:
        (warm,) = psutil.Process(server.pid).children()
        with asking(*others(server)) as told:
            until(lambda: told.asked > 20)
            warm.suspend()
            asked = told.asked
            until(lambda: told.asked > asked + 100)
            warm.resume()
        assert told.failed == {}
    note("SIGSTOP of the zygote", f"{told.asked} requests, 0 failed")


def test_a_front_that_is_killed_leaves_nothing(two):
    """SIGKILL under load, with one model hanging: no process outlives it, its ports are free."""
    for round_ in range(3):
        settings = settings_for(two, "m", "bad", isolation="process")
        server = launch(settings, two)
        children = psutil.Process(server.pid).children(recursive=True)
        assert len(children) == 3
        hanging = RestClient(server, "bad", body("hang"))
        thread = threading.Thread(target=hanging)
        thread.start()
        with asking(*others(server), pause_s=0.02) as told:
            until(lambda told=told: told.asked > 20)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            _, alive = psutil.wait_procs(children, timeout=10)
        thread.join(10)
        assert not alive, round_
        for address in (server.rest_url.rpartition("/")[2], server.grpc_address):
            host, _, port = address.rpartition(":")
            with socket.socket() as taken:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind((host, int(port)))
    note("SIGKILL of the front under load, a model hanging", "3 times nothing outlived it")


@pytest.mark.parametrize("isolation", ["process", "none"])
@pytest.mark.parametrize("batching", [True, False])
def test_a_stop_under_load_answers_what_was_accepted(two, isolation, batching):
    """Clients see answers, then refused connections; never half an answer or an error."""
    runtime = {"name": "hard"} | (
        {"batching": AdaptiveBatching(assumed=("*",))} if batching else {}
    )
    accepted = 0
    for _ in range(5):
        with serving(two, "m", isolation=isolation, runtime=RuntimeSettings(**runtime)) as server:
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
        f"SIGTERM under load, isolation {isolation}, {'' if batching else 'no '}batching",
        f"5 times exit 0; {accepted} answers, none broken off",
    )


def test_answers_that_were_begun_at_the_stop_are_whole(two):
    """Slow requests in flight at SIGTERM, as many as there are: each one has its answer."""
    with serving(two, "bad", isolation="process", drain_s=60.0) as server:
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
