"""Replicas by CPU and memory, and states of autoscalers, with real servers and a real Envoy."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.endpoints.harness import Endpoints, Load, predict
from tests.waiting import until
from timonel.endpoints.spec import service_name
from timonel.errors import SpecError, TimonelError

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

MODELS = {1: 1, 2: 2}


def test_cpu_time_adds_a_replica(endpoints: Endpoints, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("metric: cpu\ntarget: 20\nmin_replicas: 1\nmax_replicas: 2\n")
    endpoint = endpoints.deploy("digits/1", name="busy", policy=policy, cpus=0.5)
    body = b'{"instances": [' + b", ".join([b"1.0"] * 200_000) + b"]}"
    url, ends = f"{endpoint.url}/v1/models/digits:predict", False

    def ask() -> int:
        answered = 0
        while not ends:
            assert httpx.post(url, content=body, timeout=60).status_code == 200
            answered += 1
        return answered

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(ask) for _ in range(2)]
        try:
            name = service_name("busy", 1)
            until(
                lambda: len(endpoints.engine.service(name).ready) == 2,
                seen=lambda: endpoint.status.versions,
            )
        finally:
            ends = True
        assert sum(each.result() for each in clients) > 0
    assert "cpu needs" in endpoint.status.versions[1].reason
    endpoint.delete()


def test_memory_is_measured(endpoints: Endpoints, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("metric: memory\ntarget: 80\nmin_replicas: 1\nmax_replicas: 2\n")
    with pytest.raises(SpecError, match="memory that a replica requests"):
        endpoints.deploy("digits/1", name="large", policy=policy)
    # A server needs more than this.
    endpoint = endpoints.deploy("digits/1", name="large", policy=policy, memory="8MiB")
    until(
        lambda: len(endpoints.engine.service(service_name("large", 1)).ready) == 2,
        seen=lambda: endpoint.status.versions,
    )
    assert "memory needs" in endpoint.status.versions[1].reason
    endpoint.delete()


def test_states_of_autoscalers_are_kept_and_removed(endpoints: Endpoints) -> None:
    endpoint = endpoints.deploy("digits/1", name="kept")
    forecast = {**endpoint.spec.scaling.model_dump(), "forecast": {"lead_s": 10}}
    endpoint.change("forecast", scaling=forecast)
    states = Path(endpoint.folder.documents.place(f"{endpoint.name}/autoscalers"))

    def counted() -> int:
        """Return a number that grows with each measurement of the pattern."""
        with contextlib.suppress(TimonelError):
            state = endpoint.folder.autoscaler(1)
            if state is not None and state.pattern is not None:
                pattern = state.pattern
                return pattern.count + 1000 * sum(load is not None for load in pattern.loads)
        return 0

    with Load(endpoint, clients=1):
        until(lambda: counted() > 5)
        known, before = counted(), endpoint.status.at
        assert endpoints.kill_control()
        until(lambda: endpoint.status.at > before and counted() > known)
    (states / "1.json").write_text("{")
    assert endpoints.kill_control()
    until(lambda: counted() > 0)  # it begins anew
    endpoints.deploy("digits/2", name="kept")
    until(lambda: [path.name for path in states.iterdir()] == ["2.json"])
    assert predict(endpoint).status_code == 200
    endpoint.delete()
    assert not states.exists()
