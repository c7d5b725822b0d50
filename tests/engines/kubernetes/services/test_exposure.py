from __future__ import annotations

from typing import Any

import pytest

from tests.engines.kubernetes.fake_cluster import FakeCluster
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.services.exposure import Exposure
from timonel.errors import EngineError, NotFoundError

pytestmark = pytest.mark.enable_socket

PODS = {"timonel.dev/service": "gateway"}


def service(api: Api) -> dict[str, Any]:
    return api.get("Service", "digits")


def test_a_name_accepts_connections_until_it_is_concealed(api: Api) -> None:
    exposure = Exposure(api)
    exposure.expose("digits", PODS, 8501)
    spec = service(api)["spec"]
    assert (spec["type"], spec["selector"]) == ("ClusterIP", PODS)
    (port,) = spec["ports"]
    assert port["port"] == port["targetPort"] == 8501
    assert "appProtocol" not in port  # the port speaks HTTP/1.1 and HTTP/2
    exposure.conceal("digits")
    with pytest.raises(NotFoundError):
        service(api)
    exposure.conceal("digits")


def test_exposing_again_changes_what_differs(api: Api) -> None:
    Exposure(api).expose("digits", PODS, 8501)
    before = service(api)
    Exposure(api).expose("digits", PODS, 8501)
    assert service(api) == before
    Exposure(api, "LoadBalancer").expose("digits", {"timonel.dev/service": "other"}, 9000)
    spec = service(api)["spec"]
    assert (spec["type"], spec["selector"]) == ("LoadBalancer", {"timonel.dev/service": "other"})
    assert [(port["port"], port["targetPort"]) for port in spec["ports"]] == [(9000, 9000)]


def test_what_the_cluster_and_users_add_stays(api: Api) -> None:
    exposure = Exposure(api)
    exposure.expose("digits", PODS, 8501)
    added = {"annotations": {"example.org/internal": "true"}}
    api.patch("Service", "digits", {"metadata": added, "spec": {"clusterIP": "10.0.0.7"}})
    before = service(api)
    exposure.expose("digits", PODS, 8501)
    assert service(api) == before
    exposure.expose("digits", PODS, 8502)
    after = service(api)
    assert after["metadata"]["annotations"] == added["annotations"]
    assert after["spec"]["clusterIP"] == "10.0.0.7"


def test_a_service_of_others_is_left_alone(api: Api) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "digits", "labels": {"app": "shop"}},
        "spec": {"ports": [{"port": 80}]},
    }
    before = api.create(manifest)
    with pytest.raises(EngineError, match="namespace 'team' has another Service named 'digits'"):
        Exposure(api).expose("digits", PODS, 8501)
    Exposure(api).conceal("digits")
    assert service(api) == before


def test_a_service_that_another_replica_has_created_meanwhile(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    Exposure(api).expose("digits", PODS, 8501)
    exposure = Exposure(api)
    monkeypatch.setattr(api, "find", lambda *_: None)
    exposure.expose("digits", PODS, 8502)
    assert service(api)["spec"]["ports"][0]["port"] == 8502


@pytest.mark.parametrize(
    ("ingress", "url"),
    [
        ([], "digits.team.svc:8501"),
        ([{"ip": "192.0.2.7"}], "192.0.2.7:8501"),
        ([{"hostname": "lb.example.org"}], "lb.example.org:8501"),
        ([{"ip": "2001:db8::7"}], "[2001:db8::7]:8501"),
    ],
)
def test_the_address_is_that_of_the_load_balancer(
    api: Api, cluster: FakeCluster, ingress: list[dict[str, str]], url: str
) -> None:
    exposure = Exposure(api, "LoadBalancer")
    assert exposure.address("digits", 8501) == "digits.team.svc:8501"
    exposure.expose("digits", PODS, 8501)
    cluster.objects["services", "digits"]["status"] = {"loadBalancer": {"ingress": ingress}}
    assert exposure.address("digits", 8501) == url
