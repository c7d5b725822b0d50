"""Rollouts that compare the answers of two versions, with real servers and a real Envoy."""

from __future__ import annotations

import os
import signal

import httpx
import pytest

from tests.endpoints.harness import Endpoints, Load
from tests.waiting import until
from timonel.endpoints import Endpoint
from timonel.endpoints.rollouts.documents import Command, Phase, RolloutFolder, RolloutState

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

SERVER_ARGS = ("--runtime", "faulty", "--no-page")
SAME, CLOSE, OTHER, FAILING = 2, 3, 4, 5
MODELS = {
    1: {"factor": 1},
    SAME: {"factor": 1},
    CLOSE: {"factor": 1.005},
    OTHER: {"factor": 1.1},
    FAILING: {"factor": 1, "fail_every": 2},
}
STEPS = {
    "steps": (30, 100),
    "interval_s": 1,
    "min_requests": 20,
    "guards": ("agreement>90%",),
}


@pytest.fixture
def endpoint(endpoints: Endpoints) -> Endpoint:
    """The endpoint ``digits``, of version 1 alone."""
    return endpoints.deploy("digits/1", min_replicas=1, max_replicas=2, server_args=SERVER_ARGS)


def load(endpoint: Endpoint, by_grpc: int = 0) -> Load:
    """Clients of one protocol."""
    factors = {version: float(model["factor"]) for version, model in MODELS.items()}
    return Load(endpoint, 4 - by_grpc, by_grpc=by_grpc, factors=factors)


def ended(documents: RolloutFolder) -> RolloutState:
    until(lambda: documents.has_ended, seen=documents.state)
    state = documents.state()
    assert state is not None
    return state


@pytest.mark.parametrize("by_grpc", [0, 4])
@pytest.mark.parametrize("version", [SAME, CLOSE])
def test_a_version_with_the_same_answers_is_promoted(
    endpoint: Endpoint, by_grpc: int, version: int
) -> None:
    with load(endpoint, by_grpc) as clients:
        documents = endpoint.rollout(version, **STEPS)
        state = ended(documents)
    assert clients.failures == []
    assert state.phase is Phase.PROMOTED
    counts = documents.points()[-1].counts[version]
    assert 0 < counts.pairs == counts.agreements


@pytest.mark.parametrize("by_grpc", [0, 4])
@pytest.mark.parametrize("version", [OTHER, FAILING])
def test_a_version_with_other_answers_is_rolled_back(
    endpoint: Endpoint, by_grpc: int, version: int
) -> None:
    with load(endpoint, by_grpc):
        state = ended(endpoint.rollout(version, **STEPS))
    assert state.phase is Phase.ROLLED_BACK
    assert state.message.startswith(f"version {version} was rolled back: agreement is ")
    assert endpoint.spec.traffic.percent == {1: 100}


def test_killed_replicas_do_not_end_a_comparison(endpoints: Endpoints, endpoint: Endpoint) -> None:
    endpoint.scale(2, 2)
    with load(endpoint) as clients:
        documents = endpoint.rollout(SAME, **STEPS)
        until(lambda: pairs_of(documents, SAME) > 0)
        for version in (1, SAME):
            name = f"digits-v{version}"
            until(lambda name=name: len(endpoints.engine.service(name).ready) == 2)
            os.kill(endpoints.pids(name)[0], signal.SIGKILL)
        state = ended(documents)
    assert clients.failures == []
    assert state.phase is Phase.PROMOTED


def test_nothing_is_promoted_without_answers_to_compare(endpoint: Endpoint) -> None:
    """Requests of metadata are answered, but have no outputs."""
    documents = endpoint.rollout(SAME, **STEPS)

    def message() -> str:
        for _ in range(20):
            httpx.get(f"{endpoint.url}/v1/models/digits/metadata").raise_for_status()
        state = documents.state()
        return "" if state is None else state.message

    until(lambda: message().startswith("waits for answers to compare: of "), seen=message)
    endpoint.command_rollout(Command.ABORT)
    assert ended(documents).phase is Phase.ABORTED


def pairs_of(documents: RolloutFolder, version: int) -> int:
    state = documents.state()
    found = state.counts.get(version) if state else None
    return found.pairs if found else 0
