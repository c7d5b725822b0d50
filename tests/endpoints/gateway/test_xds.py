"""The rendered configuration refers only to what it contains, and Envoy accepts it."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.endpoints.tokens import elliptic, jwks
from tests.serving.auth.certificates import Authority
from timonel.endpoints.gateway.parts import EndpointRoute, Places, Secrets
from timonel.endpoints.gateway.process import envoy_binary
from timonel.endpoints.gateway.xds import bootstrap, files
from timonel.endpoints.spec import EndpointSpec, Traffic

PLACES = Places(Path("/config"), Path("/run/activator.sock"))
READY = {"http": ("127.0.0.1:9001", "127.0.0.1:9002"), "grpc": ("127.0.0.1:9003",)}

versions = st.integers(1, 5)


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    shares = draw(st.lists(st.integers(1, 50), min_size=1, max_size=2))
    percent = {index + 1: share for index, share in enumerate(shares)}
    percent[9] = 100 - sum(shares)
    sticky = draw(st.sampled_from([None, {"cookie": "v"}, {"header": "x-user"}]))
    shadow = draw(st.one_of(st.none(), versions.map(lambda version: {"version": version})))
    labels = draw(st.dictionaries(st.sampled_from(["stable", "canary"]), versions))
    match = [{"header": "x-team", "value": "a", "version": draw(versions)}]
    return Traffic.model_validate(
        {
            "percent": percent,
            "sticky": sticky,
            "shadow": shadow,
            "labels": labels,
            "matches": draw(st.sampled_from([[], match])),
        }
    )


def route(traffic: Traffic, name: str = "digits", **fields: Any) -> EndpointRoute:
    spec = EndpointSpec(name=name, model="digits", traffic=traffic, port=8501, **fields)
    return EndpointRoute(spec, traffic, {1: READY})  # type: ignore[dict-item]


comparisons = st.sampled_from([None, (1, 9), (9, 1)])


def found(value: Any, key: str) -> list[Any]:
    """Return all values of a key, at any depth."""
    if isinstance(value, dict):
        own = [value[key]] if key in value else []
        return own + [each for inner in value.values() for each in found(inner, key)]
    if isinstance(value, list):
        return [each for inner in value for each in found(inner, key)]
    return []


def by_name(content: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in content["resources"]}


@given(traffics(), comparisons)
def test_everything_that_is_named_exists(traffic: Traffic, compared: tuple[int, int]) -> None:
    made = files([replace(route(traffic), compared=compared), route(traffic, "other")], PLACES)
    clusters = by_name(made["clusters"])
    tables = [made[name] for name in made if name.startswith("routes-")] + [made["_hold"]]
    named = {
        each["name"] for table in tables for shares in found(table, "clusters") for each in shares
    }
    named |= {each for table in tables for each in found(table, "cluster")}
    assert named <= set(clusters)
    for name, cluster in clusters.items():
        if cluster["type"] == "EDS":
            (assignment,) = made[name]["resources"]
            assert assignment["cluster_name"] == name
    for path in found(made, "path"):
        if path.startswith("/config/"):
            assert path.split("/")[2] in made


@given(traffics(), comparisons)
def test_weights_are_the_percentages(traffic: Traffic, compared: tuple[int, int]) -> None:
    made = files([replace(route(traffic), compared=compared)], PLACES)
    host, _ = made["routes-digits"]["resources"][0]["virtual_hosts"]
    last = host["routes"][-1]  # what no label and no header chose, over REST
    weights = {
        each["name"]: each["weight"] for each in last["route"]["weighted_clusters"]["clusters"]
    }
    shares = {f"digits-v{v}-http": share for v, share in traffic.percent.items() if share}
    assert weights == shares


@pytest.mark.parametrize(
    ("cookie", "version"),
    [
        ("my-v=2", 2), ("a=b; my-v=1", 1), ("a=b;my-v=2; c=d", 2), ("xmy-v=1; my-v=2", 2),
        ("xmy-v=1", None), ("a=b; xmy-v=1", None), ("my-v=12", None), ("my-v=1x", None),
        ("my-v=3", None), ("My-v=1", None), ("a=my-v=1", None), ("my-v =1", None),
    ],
)  # fmt: skip
def test_only_the_cookie_of_that_name_chooses_a_version(cookie: str, version: int | None) -> None:
    traffic = Traffic.model_validate({"percent": {1: 30, 2: 70}, "sticky": {"cookie": "my-v"}})
    host, _ = files([route(traffic)], PLACES)["routes-digits"]["resources"][0]["virtual_hosts"]
    chosen = {
        shares[0]["name"]
        for each in host["routes"]
        for pattern in found(each["match"], "regex")
        for shares in found(each, "clusters")
        if re.fullmatch(pattern, cookie)  # as Envoy: all of the header
    }
    wanted = {f"digits-v{version}-{protocol}" for protocol in ("http", "grpc")}
    assert chosen == (set() if version is None else wanted)


@pytest.mark.parametrize("sticky", [None, {"cookie": "v"}, {"header": "x-user"}])
def test_some_requests_of_a_compared_version_are_copied(sticky: dict[str, str] | None) -> None:
    traffic = Traffic.model_validate({"percent": {1: 30, 2: 70}, "sticky": sticky})
    made = files([replace(route(traffic), compared=(2, 1))], PLACES)
    host, _ = made["routes-digits"]["resources"][0]["virtual_hosts"]
    routes = [each for each in host["routes"] if "prefix" in each["match"] and "route" in each]
    for copied, plain in itertools.pairwise(routes):
        if "request_mirror_policies" not in copied["route"]:
            continue
        fraction = copied["match"].pop("runtime_fraction")["default_value"]
        assert fraction == {"numerator": 10, "denominator": "HUNDRED"}
        (added,) = copied["request_headers_to_add"]
        assert added["header"] == {"key": "x-timonel-comparison", "value": "%UNIQUE_ID%"}
        (policy,) = copied["route"].pop("request_mirror_policies")
        assert policy["cluster"] in ("digits-v1-http-copies", "digits-v1-grpc-copies")
        # The others get the same answer, and no ID that the client chose.
        assert (plain["match"], plain["route"]) == (copied["match"], copied["route"])
        assert plain["request_headers_to_remove"] == ["x-timonel-comparison", "origin"]
        first = copied["route"]["weighted_clusters"]["clusters"][0]["name"]
        assert first.startswith("digits-v2-")
    copies = found(made["routes-digits"], "cluster")
    assert len(copies) == 0  # all were taken out above


def test_requests_are_copied_besides_shadow_traffic() -> None:
    traffic = Traffic.model_validate({"percent": {1: 90, 2: 10}, "shadow": {"version": 3}})
    made = files([replace(route(traffic), compared=(1, 2))], PLACES)
    copies = found(made["routes-digits"], "request_mirror_policies")
    assert [[each["cluster"] for each in policies] for policies in copies] == [
        [f"digits-v{version}-{protocol}-copies" for version in versions]
        for protocol in ("grpc", "http")
        for versions in ((2, 3), (3,))
    ]


def test_replicas_come_before_the_activator() -> None:
    made = files([route(Traffic(percent={1: 50, 2: 50}))], PLACES)
    replicas, activator = made["digits-v1-http"]["resources"][0]["endpoints"]
    assert (replicas["priority"], activator["priority"]) == (0, 1)
    assert len(replicas["lb_endpoints"]) == 2
    assert len(made["digits-v1-grpc"]["resources"][0]["endpoints"][0]["lb_endpoints"]) == 1
    (only,) = made["digits-v2-http"]["resources"][0]["endpoints"]
    assert only["priority"] == 0
    assert found(only, "server_listener_name") == ["_hold"]
    (released,) = made["digits-v2-http-released"]["resources"][0]["endpoints"]
    assert found(released, "server_listener_name") == ["_hold"]
    assert not any(name.endswith("-copies") for name in made)


def test_nothing_waits_in_a_cluster_of_copies() -> None:
    traffic = Traffic.model_validate({"percent": {1: 100}, "shadow": {"version": 2}})
    made = files([route(traffic)], PLACES)
    assert made["digits-v2-http-copies"]["resources"][0]["endpoints"] == []
    assert "digits-v1-http-copies" not in made


def test_the_configuration_does_not_change_by_itself() -> None:
    made = [files([route(Traffic(percent={1: 100}))], PLACES) for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("host", "domains"),
    [
        ("127.0.0.1", [["127.0.0.1", "::1", "[::1]", "lab", "localhost"], ["*"]]),
        ("0.0.0.0", [["*"]]),
    ],
)
def test_hosts_are_checked_on_loopback_addresses(host: str, domains: list[list[str]]) -> None:
    made = files([route(Traffic(percent={1: 100}), host=host, access={"hosts": ("lab",)})], PLACES)
    assert found(made["routes-digits"], "domains") == domains


@pytest.mark.process
@settings(max_examples=5)
@given(traffics(), comparisons)
def test_envoy_accepts_it(
    tmp_path_factory: pytest.TempPathFactory, traffic: Traffic, compared: tuple[int, int]
) -> None:
    """All resources at once, as static ones: `--mode validate` does not read dynamic ones."""
    place = tmp_path_factory.mktemp("xds")
    cert, key = Authority().issue(place, "server")
    secrets = Secrets(
        {"shop": "0123456789abcdef"},
        (cert.read_text(), key.read_text()),
        jwks(elliptic()),
    )
    access = {
        "api_keys": "/keys",
        "tls": {"cert": "/cert", "key": "/key"},
        "jwt": {"issuer": "i", "jwks": "/j"},
    }
    guarded = replace(route(traffic, access=access), secrets=secrets, compared=compared)
    made = files([guarded], Places(place, place / "activator.sock"))
    for name, content in made.items():
        (place / name).mkdir()
        (place / name / "current.json").write_text(json.dumps(content))
    start = bootstrap(Places(place, place / "activator.sock"), 100)
    del start["dynamic_resources"]
    table = made["routes-digits"]["resources"][0]
    listeners = made["listeners"]["resources"]
    for listener in listeners:
        manager = listener["filter_chains"][0]["filters"][-1]["typed_config"]
        del manager["rds"]
        chosen = made["_hold"]["resources"][0] if listener["name"] == "_hold" else table
        manager["route_config"] = {k: v for k, v in chosen.items() if k != "@type"}
        del listener["@type"]
    clusters = made["clusters"]["resources"]
    for cluster in clusters:
        del cluster["@type"]
    start["static_resources"] = {"listeners": listeners, "clusters": clusters}
    config = place / "envoy.json"
    config.write_text(json.dumps(start))
    done = subprocess.run(
        [envoy_binary(), "--mode", "validate", "-c", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
