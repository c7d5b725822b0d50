"""Rollouts with real servers and a real Envoy, under load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.endpoints.harness import Endpoints, Load
from tests.waiting import until
from timonel.endpoints import Endpoint
from timonel.endpoints.rollouts.documents import Command, Phase, RolloutFolder, RolloutState
from timonel.endpoints.rollouts.report import write_report
from timonel.errors import EngineError, NotFoundError, SpecError

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

SERVER_ARGS = ("--runtime", "faulty", "--no-page")
GOOD, SLOW, FAILING = 2, 3, 4
MODELS = {
    1: {"factor": 1},
    GOOD: {"factor": GOOD},
    SLOW: {"factor": SLOW, "delay_s": 0.2},
    FAILING: {"factor": FAILING, "fail_every": 4},
}
STEPS = {"steps": (30, 60, 100), "interval_s": 1, "min_requests": 20}


@pytest.fixture
def endpoint(endpoints: Endpoints) -> Endpoint:
    """The endpoint ``digits``, of version 1 alone."""
    return endpoints.deploy("digits/1", min_replicas=1, max_replicas=1, server_args=SERVER_ARGS)


def ended(documents: RolloutFolder) -> RolloutState:
    until(lambda: documents.has_ended, seen=documents.state)
    state = documents.state()
    assert state is not None
    return state


def test_a_good_version_is_promoted_though_the_control_plane_is_killed(
    endpoints: Endpoints, endpoint: Endpoint, tmp_path: Path
) -> None:
    with Load(endpoint) as load:
        documents = endpoint.rollout(GOOD, **STEPS)
        until(lambda: (state := documents.state()) is not None and state.since is not None)
        assert endpoints.kill_control()
        state = ended(documents)
        until(lambda: endpoint.status.routed == endpoint.revision.number)
        load.more()
    assert load.failures == []
    assert (state.phase, state.message) == (Phase.PROMOTED, "version 2 was promoted")
    assert endpoint.spec.traffic.percent == {GOOD: 100}
    causes = [f"rollout to {GOOD}: {percent}%" for percent in (30, 60, 100)]
    assert [each.cause for each in endpoint.revisions][-3:] == causes
    write_report(tmp_path / "report.html", documents, endpoint.name)
    page = (tmp_path / "report.html").read_text()
    assert "version 2 was promoted" in page
    assert "data:image/svg+xml" in page


def test_a_slow_version_is_rolled_back(endpoint: Endpoint) -> None:
    with Load(endpoint) as load:
        documents = endpoint.rollout(SLOW, **STEPS, guards=("p50<10x", "error_rate<1%"))
        state = ended(documents)
        until(lambda: endpoint.status.routed == endpoint.revision.number)
        load.more()
    assert load.failures == []
    assert state.phase is Phase.ROLLED_BACK
    assert re.match(r"version 3 was rolled back: p50 is [\d.]+ms of \d+ requests", state.message)
    assert endpoint.spec.traffic.percent == {1: 100}


def test_only_requests_of_a_failing_version_fail(endpoint: Endpoint) -> None:
    with Load(endpoint) as load:
        state = ended(endpoint.rollout(FAILING, **STEPS))
        until(lambda: endpoint.status.routed == endpoint.revision.number)
        load.more()
    assert state.phase is Phase.ROLLED_BACK
    assert state.message.startswith("version 4 was rolled back: error_rate is 2")
    # It stops within seconds: its share of 30 % has answered a few hundred requests.
    assert 0 < len(load.failures) < load.answered / 4
    assert {failure[:4] for failure in load.failures} == {"500 "}


@pytest.mark.parametrize(
    ("version", "phase"), [(GOOD, Phase.PROMOTED), (FAILING, Phase.ROLLED_BACK)]
)
def test_requests_over_grpc_decide_too(endpoint: Endpoint, version: int, phase: Phase) -> None:
    with Load(endpoint, 0, by_grpc=4) as load:
        state = ended(endpoint.rollout(version, **STEPS))
        until(lambda: endpoint.status.routed == endpoint.revision.number)
        load.more()
    assert state.phase is phase
    if phase is Phase.PROMOTED:
        assert load.failures == []
    else:
        assert state.message.startswith("version 4 was rolled back: error_rate is 2")
        assert {failure.split()[0] for failure in load.failures} == {"StatusCode.INTERNAL"}


def test_a_change_by_hand_pauses(endpoint: Endpoint) -> None:
    documents = endpoint.rollout(GOOD, **STEPS)
    with pytest.raises(EngineError, match=r"rollout \d+ of digits is in progress"):
        endpoint.rollout(SLOW)
    until(lambda: endpoint.spec.traffic.percent == {1: 70, GOOD: 30})
    endpoint.scale(1, 2)
    until(lambda: (state := documents.state()) is not None and state.phase is Phase.PAUSED)
    assert endpoint.spec.traffic.percent == {1: 70, GOOD: 30}
    endpoint.command_rollout(Command.ABORT)
    state = ended(documents)
    assert state.phase is Phase.ABORTED
    assert endpoint.revision.cause == "scale 1 to 2"
    with pytest.raises(NotFoundError, match="digits has no rollout in progress"):
        endpoint.command_rollout(Command.PAUSE)


def test_a_rollout_can_be_paused_and_aborted(endpoint: Endpoint) -> None:
    with Load(endpoint):
        documents = endpoint.rollout(GOOD, **{**STEPS, "min_requests": 1_000_000})
        until(lambda: (state := documents.state()) is not None and bool(state.counts))
        endpoint.command_rollout(Command.PAUSE)
        until(lambda: (state := documents.state()) is not None and state.phase is Phase.PAUSED)
        endpoint.command_rollout(Command.RESUME)
        until(lambda: (state := documents.state()) is not None and state.phase is Phase.RUNNING)
        endpoint.command_rollout(Command.ABORT)
        assert ended(documents).phase is Phase.ABORTED
    assert endpoint.spec.traffic.percent == {1: 100}


def test_bad_rollouts_are_refused(endpoint: Endpoint) -> None:
    before = len(endpoint.rollouts)
    with pytest.raises(NotFoundError, match="no version 77"):
        endpoint.rollout(77)
    with pytest.raises(SpecError, match="version 1 of digits gets all requests already"):
        endpoint.rollout(1)
    with pytest.raises(SpecError, match="ascending percentages that end with 100"):
        endpoint.rollout(GOOD, steps=(50, 20))
    with pytest.raises(SpecError, match="invalid guards of a rollout: no such metric: 'speed'"):
        endpoint.rollout(GOOD, guards=("speed<1%",))
    with pytest.raises(SpecError, match="invalid interval_s of a rollout"):
        endpoint.rollout(GOOD, interval_s="soon")
    endpoint.split({1: 50, GOOD: 50})
    with pytest.raises(SpecError, match="digits divides its requests: 1=50, 2=50"):
        endpoint.rollout(GOOD)
    assert len(endpoint.rollouts) == before
    with pytest.raises(NotFoundError, match="digits has no rollout"):
        endpoint.find_rollout(99)
