"""Endpoints reached from outside the cluster, by an Ingress and a Gateway of Contour."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import httpx
import pytest

from tests.cluster.conftest import KUBELAB, Cluster, Lab
from tests.endpoints.harness import GrpcClient
from tests.waiting import until
from timonel.endpoints.engine import engine_of
from timonel.endpoints.handle import start_control

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200), pytest.mark.enable_socket]
_DOMAIN = "models.example.org"
_HOST = f"digits.{_DOMAIN}"


@dataclass(frozen=True)
class Proxy:
    """Contour's Envoy, as clients from outside see it."""

    address: str

    def ask(self, host: str = _HOST) -> httpx.Response:
        url = f"http://{self.address}/v1/models/digits:predict"
        headers = {"host": host}
        return httpx.post(url, json={"instances": [3.0]}, headers=headers, timeout=60)

    def answers(self, host: str = _HOST) -> bool:
        try:
            response = self.ask(host)
        except httpx.ConnectError:  # it listens only while it has routes
            return False
        assert response.status_code in {200, 404, 503}, response.text
        return response.status_code == 200 and response.json() == {"predictions": [3.0]}

    def ask_by_grpc(self) -> float:
        options = [("grpc.default_authority", _HOST)]
        with grpc.insecure_channel(f"{self.address}:80", options) as channel:
            return GrpcClient(channel).ask(3.0)[1]


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    if not cluster.is_own:
        pytest.skip("only kubelab's clusters get a proxy")
    subprocess.run([str(KUBELAB), "contour"], check=True)
    shown = cluster.run("get", "service", "contour", "-n", "contour", "-o", "json")
    yield Proxy(json.loads(shown)["spec"]["clusterIP"])
    subprocess.run([str(KUBELAB), "contour", "remove"], check=True)


def names(cluster: Cluster, kind: str) -> list[str]:
    return cluster.run("get", kind, "-o", "name").split()


def test_a_gateway_takes_rest_and_grpc(
    lab: Lab,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_DOMAIN", _DOMAIN)
    monkeypatch.setenv("TIMONEL_KUBERNETES_GATEWAY", "contour/contour")
    endpoint = lab.deploy("digits/1", min_replicas=0)
    until(proxy.answers)
    assert proxy.ask_by_grpc() == 3.0
    until(lambda: endpoint.outside is not None and endpoint.outside.message is None)
    assert endpoint.outside is not None
    assert endpoint.outside.host == _HOST
    assert proxy.ask(f"other.{_DOMAIN}").status_code == 404
    lab.deploy("digits", port=8600)
    until(lambda: lab.address(endpoint).url.endswith(":8600"))
    until(proxy.answers)
    lab.cluster.run("delete", "httproute", "digits")
    until(proxy.answers)
    monkeypatch.setenv("TIMONEL_KUBERNETES_DOMAIN", "other.example.org")
    engine_of.cache_clear()
    start_control(lab.workspace)
    until(lambda: proxy.answers("digits.other.example.org"))
    assert proxy.ask().status_code == 404
    endpoint.delete()
    until(lambda: not names(lab.cluster, "httproute"))


def test_a_gateway_that_does_not_exist_is_named(
    lab: Lab,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_DOMAIN", _DOMAIN)
    monkeypatch.setenv("TIMONEL_KUBERNETES_GATEWAY", "contour/missing")
    endpoint = lab.deploy("digits/1")
    until(lambda: endpoint.outside is not None)
    assert endpoint.outside is not None
    assert "for the Gateway contour/missing" in str(endpoint.outside.message)


def test_an_ingress_takes_rest(
    lab: Lab,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_DOMAIN", _DOMAIN)
    monkeypatch.setenv("TIMONEL_KUBERNETES_INGRESS_CLASS", "contour")
    endpoint = lab.deploy("digits/1")
    until(proxy.answers)
    assert endpoint.outside is not None
    assert endpoint.outside.host == _HOST
    endpoint.delete()
    until(lambda: not names(lab.cluster, "ingress"))
