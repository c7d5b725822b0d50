"""Processes that share the ports are killed while clients ask without a pause."""

from __future__ import annotations

import signal
from collections import Counter

import psutil
import pytest

from tests.serving.hardening.harness import (
    GrpcClient,
    RestClient,
    Usage,
    asking,
    needs_linux,
    serving,
    settled,
)
from tests.serving.hardening.page import note
from tests.waiting import until

pytestmark = [pytest.mark.soak, needs_linux]

WORKERS, CLIENTS = 3, 6
LOST_OVER_REST = ("RemoteDisconnected", "ConnectionReset", "BrokenPipe", "IncompleteRead")
"""How a connection ends with the process that had it; "refused" is not among it."""


class Counted:
    """A client that keeps what itself was told, beside what all were."""

    def __init__(self, client):
        self._client = client
        self.outcomes = Counter()

    def __call__(self):
        outcome, value = self._client()
        self.outcomes[outcome] += 1
        return outcome, value

    @property
    def lost(self):
        return self.outcomes.total() - self.outcomes["OK"]

    @property
    def port(self):
        """The port that it asks from over REST; none while it has no connection."""
        connected = self._client._connection.sock
        return None if connected is None else connected.getsockname()[1]

    def close(self):
        self._client.close()


def listening(server, port):
    """Return the workers that listen on a port, by pid."""
    found = {}
    for child in psutil.Process(server.pid).children():
        try:
            if "timonel.serving.workers.worker" not in child.cmdline():
                continue
            held = child.net_connections("tcp")
        except psutil.Error:  # it has just ended
            continue
        if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in held):
            found[child.pid] = child
    return found


def asked_by(process, port):
    """Return the ports of clients whose connections to a port a process holds."""
    return {
        each.raddr.port
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port and each.raddr
    }


def answers(clients):
    return {client: client.outcomes["OK"] for client in clients}


def all_are_answered(clients):
    """Wait until each client has had answers from now on."""
    had = answers(clients)
    until(lambda: all(count >= had[client] + 20 for client, count in answers(clients).items()))


def test_a_worker_that_is_killed_costs_what_it_was_answering(workspace, m):
    """SIGKILL: its clients lose what was under way, others nothing, and none anything later."""
    lost = Counter()
    with serving(workspace, "m", isolation="process", workers=WORKERS) as server:
        rest_port = int(server.rest_url.rpartition(":")[2])
        grpc_port = int(server.grpc_address.rpartition(":")[2])
        rest = [Counted(RestClient(server)) for _ in range(CLIENTS)]
        rpc = [Counted(GrpcClient(server, patient=True)) for _ in range(CLIENTS)]
        everyone = [*rest, *rpc]
        until(lambda: len(listening(server, grpc_port)) == WORKERS)
        before = Usage.of(server)
        with asking(*everyone) as told:
            # Each once: one that dies again within a minute is away for a while, and what has
            # connected to its queue by then is reset.
            for victim in listening(server, grpc_port).values():
                all_are_answered(everyone)
                had = {client: client.lost for client in everyone}
                # Stopped first: whom it answers cannot change until it is killed.
                victim.suspend()
                theirs = asked_by(victim, rest_port)
                calls = len(asked_by(victim, grpc_port))
                asked = [client for client in rest if client.port in theirs]
                others = [client for client in rest if client not in asked]
                # The others are answered while it says nothing.
                all_are_answered(others)
                victim.send_signal(signal.SIGKILL)
                victim.wait(60)
                # gRPC's port is taken by each worker itself, as the last thing before it answers.
                until(lambda: len(listening(server, grpc_port)) == WORKERS)
                all_are_answered(everyone)
                after = {client: client.lost for client in everyone}
                all_are_answered(everyone)
                assert after == {client: client.lost for client in everyone}, told.failed
                assert all(client.lost - had[client] <= 1 for client in asked), told.failed
                assert all(client.lost == had[client] for client in others), told.failed
                # A client that has not noticed yet may begin one call more on what is gone.
                losers = [client for client in rpc if client.lost > had[client]]
                assert len(losers) <= calls, told.failed
                lost["gRPC"] += sum(client.lost - had[client] for client in losers)
                lost["REST"] += sum(client.lost - had[client] for client in asked)
        assert set(told.values) == {1.0}
        for outcome in told.failed:
            assert outcome.startswith((*LOST_OVER_REST, "UNAVAILABLE")), told.failed
        usage = settled(server, before)
    assert usage.descriptors <= before.descriptors + 2
    assert usage.processes == before.processes
    note(
        f"SIGKILL of each of {WORKERS} workers, {CLIENTS} clients each over REST and gRPC",
        f"{told.asked} requests; lost {lost['REST']} over REST, {lost['gRPC']} over gRPC, each on "
        f"a connection of the one that was killed; {usage}",
    )
