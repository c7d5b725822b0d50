from __future__ import annotations

from typing import Any

import pytest

from tests.engines.kubernetes.fake_cluster import FakeCluster
from tests.engines.kubernetes.memory_api import MemoryApi
from timonel.engines import OutsideAddress
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.services.exposure import Exposure
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import EngineError, NotFoundError

pytestmark = pytest.mark.enable_socket

PODS = {"timonel.dev/service": "gateway"}


def service(api: Api) -> dict[str, Any]:
    return api.get("Service", "digits")


def test_a_name_accepts_connections_until_it_is_concealed(api: Api) -> None:
    exposure = Exposure(api, ClusterSettings())
    exposure.expose("digits", PODS, 8501, has_tls=False)
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
    Exposure(api, ClusterSettings()).expose("digits", PODS, 8501, has_tls=False)
    before = service(api)
    Exposure(api, ClusterSettings()).expose("digits", PODS, 8501, has_tls=False)
    assert service(api) == before
    Exposure(api, ClusterSettings(service_type="LoadBalancer")).expose(
        "digits", {"timonel.dev/service": "other"}, 9000, has_tls=False
    )
    spec = service(api)["spec"]
    assert (spec["type"], spec["selector"]) == ("LoadBalancer", {"timonel.dev/service": "other"})
    assert [(port["port"], port["targetPort"]) for port in spec["ports"]] == [(9000, 9000)]


def test_what_the_cluster_and_users_add_stays(api: Api) -> None:
    exposure = Exposure(api, ClusterSettings())
    exposure.expose("digits", PODS, 8501, has_tls=False)
    added = {"annotations": {"example.org/internal": "true"}}
    api.patch("Service", "digits", {"metadata": added, "spec": {"clusterIP": "10.0.0.7"}})
    before = service(api)
    exposure.expose("digits", PODS, 8501, has_tls=False)
    assert service(api) == before
    exposure.expose("digits", PODS, 8502, has_tls=False)
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
        Exposure(api, ClusterSettings()).expose("digits", PODS, 8501, has_tls=False)
    Exposure(api, ClusterSettings()).conceal("digits")
    assert service(api) == before


def test_a_service_that_another_replica_has_created_meanwhile(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    Exposure(api, ClusterSettings()).expose("digits", PODS, 8501, has_tls=False)
    exposure = Exposure(api, ClusterSettings())
    monkeypatch.setattr(api, "find", lambda *_: None)
    exposure.expose("digits", PODS, 8502, has_tls=False)
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
    exposure = Exposure(api, ClusterSettings(service_type="LoadBalancer"))
    assert exposure.address("digits", 8501) == "digits.team.svc:8501"
    exposure.expose("digits", PODS, 8501, has_tls=False)
    cluster.objects["services", "digits"]["status"] = {"loadBalancer": {"ingress": ingress}}
    assert exposure.address("digits", 8501) == url


GATEWAY = ClusterSettings(domain="models.example.org", gateway="infra/web")
INGRESS = ClusterSettings(domain="models.example.org", ingress_class="nginx")


def expose(api: Api, settings: ClusterSettings, *, has_tls: bool = False, port: int = 8501) -> None:
    Exposure(api, settings).expose("digits", PODS, port, has_tls=has_tls)


def routes(api: Api) -> list[str]:
    return [kind for kind in ("HTTPRoute", "Ingress") if api.find(kind, "digits") is not None]


def test_a_route_follows_the_settings_and_the_port(api: Api) -> None:
    expose(api, GATEWAY)
    assert routes(api) == ["HTTPRoute"]
    assert service(api)["spec"]["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    expose(api, GATEWAY, port=8502)
    (rule,) = api.get("HTTPRoute", "digits")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "digits", "port": 8502}]
    expose(api, INGRESS)
    assert routes(api) == ["Ingress"]
    assert "appProtocol" not in service(api)["spec"]["ports"][0]
    expose(api, INGRESS, has_tls=True)
    assert routes(api) == []
    expose(api, INGRESS)
    expose(api, ClusterSettings())
    assert (routes(api), Exposure(api, INGRESS).outside("digits")) == ([], None)


def test_a_route_that_somebody_edits_or_deletes_is_restored(api: Api, cluster: FakeCluster) -> None:
    expose(api, GATEWAY)
    before = api.get("HTTPRoute", "digits")
    expose(api, GATEWAY)
    assert api.get("HTTPRoute", "digits") == before
    # The cluster adds fields with defaults.
    cluster.objects["httproutes", "digits"]["spec"]["parentRefs"][0]["group"] = "gateway"
    version = api.get("HTTPRoute", "digits")["metadata"]["resourceVersion"]
    expose(api, GATEWAY)
    assert api.get("HTTPRoute", "digits")["metadata"]["resourceVersion"] == version
    for damage in ({"hostnames": None}, {"parentRefs": [{"name": "web"}, {"name": "other"}]}):
        api.patch("HTTPRoute", "digits", {"spec": damage})
        outside = Exposure(api, GATEWAY).outside("digits")
        assert outside is not None
        assert outside.host == "digits.models.example.org"
        expose(api, GATEWAY)
        assert api.get("HTTPRoute", "digits")["spec"]["hostnames"] == ["digits.models.example.org"]
        assert len(api.get("HTTPRoute", "digits")["spec"]["parentRefs"]) == 1
    api.delete("HTTPRoute", "digits", uid=before["metadata"]["uid"])
    outside = Exposure(api, GATEWAY).outside("digits")
    assert outside is not None
    assert outside.message == "there is no HTTPRoute"
    expose(api, GATEWAY)
    assert routes(api) == ["HTTPRoute"]


def test_an_ingress_loses_its_class(api: Api) -> None:
    expose(api, INGRESS)
    assert api.get("Ingress", "digits")["spec"]["ingressClassName"] == "nginx"
    expose(api, ClusterSettings(domain="models.example.org"))
    assert "ingressClassName" not in api.get("Ingress", "digits")["spec"]


def test_a_proxy_waits_as_long_as_the_endpoint(api: Api) -> None:
    expose(api, GATEWAY)
    (rule,) = api.get("HTTPRoute", "digits")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s"}


def test_a_route_is_checked_without_creating_it() -> None:
    api = MemoryApi()
    Exposure(api, GATEWAY).check("digits", has_tls=False)
    Exposure(api, GATEWAY).check("digits", has_tls=True)
    assert (api.dry_runs, api.objects) == (["HTTPRoute"], {})
    api.unknown = {"HTTPRoute"}
    with pytest.raises(EngineError, match="cannot create httproutes: 404"):
        Exposure(api, GATEWAY).check("digits", has_tls=False)


def test_a_cluster_that_no_longer_has_the_gateway_api() -> None:
    api = MemoryApi()
    expose(api, GATEWAY)
    api.unknown = {"HTTPRoute"}
    outside = Exposure(api, ClusterSettings()).outside("digits")
    assert outside is not None
    assert "cannot get httproutes" in str(outside.message)


def test_a_route_belongs_to_the_service_object(api: Api) -> None:
    expose(api, GATEWAY)
    found = api.get("HTTPRoute", "digits")["metadata"]
    (owner,) = found["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Service", service(api)["metadata"]["uid"])
    assert found["labels"] == service(api)["metadata"]["labels"]


@pytest.mark.parametrize(("settings", "kind"), [(GATEWAY, "HTTPRoute"), (INGRESS, "Ingress")])
def test_a_route_of_others_is_left_alone(api: Api, settings: ClusterSettings, kind: str) -> None:
    (_, manifest) = Exposure(api, settings).manifests("digits", PODS, 8501, has_tls=False)
    before = api.create(manifest)
    with pytest.raises(EngineError, match=f"namespace 'team' has another {kind} named 'digits'"):
        expose(api, settings)
    expose(api, ClusterSettings())
    assert api.get(kind, "digits") == before


def test_a_cluster_without_the_gateway_api() -> None:
    api = MemoryApi()
    api.unknown = {"HTTPRoute"}
    with pytest.raises(EngineError, match="cannot get httproutes: 404") as caught:
        expose(api, GATEWAY)
    assert "kubectl api-resources" in str(caught.value.hint)
    api.unknown.clear()
    expose(api, GATEWAY)
    assert routes(api) == ["HTTPRoute"]


def test_the_address_outside_is_that_of_the_route(api: Api, cluster: FakeCluster) -> None:
    exposure = Exposure(api, ClusterSettings())
    assert exposure.outside("digits") is None
    expose(api, INGRESS)
    assert exposure.outside("digits") == OutsideAddress(
        host="digits.models.example.org",
        message="no controller has published an address of the Ingress",
    )
    balancer = {"ingress": [{"ip": "192.0.2.7"}]}
    cluster.objects["ingresses", "digits"]["status"] = {"loadBalancer": balancer}
    assert exposure.outside("digits") == OutsideAddress(host="digits.models.example.org")
    expose(api, GATEWAY)
    outside = exposure.outside("digits")
    assert outside is not None
    assert outside.message == "no controller has taken the route for the Gateway infra/web"
    accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": ""}
    resolved = {"type": "ResolvedRefs", "status": "True", "reason": "ResolvedRefs", "message": ""}
    found = cluster.objects["httproutes", "digits"]
    found["status"] = {"parents": [{"conditions": [accepted, resolved]}]}
    assert exposure.outside("digits") == OutsideAddress(host="digits.models.example.org")
    refused = {**accepted, "status": "False", "reason": "NotAllowedByListeners"}
    found["status"] = {"parents": [{"conditions": [resolved, refused]}]}
    outside = exposure.outside("digits")
    assert outside is not None
    assert outside.message == (
        "the Gateway infra/web does not use the route: NotAllowedByListeners"
    )
