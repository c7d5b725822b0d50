from __future__ import annotations

import pytest
from pydantic import ValidationError

from timonel.endpoints.spec import (
    Access,
    EndpointSpec,
    Jwt,
    Limits,
    Traffic,
    endpoint_name,
    parse_rate,
    service_name,
)
from timonel.engines import ServiceSpec


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("digits", "digits"),
        ("Cats_Dogs", "cats-dogs"),
        ("s3://bucket/models/Digits.v2/", "digits-v2"),
        ("x" * 80, "x" * 30),
        ("a" * 29 + "-b", "a" * 29),
    ],
)
def test_the_usual_name_is_a_dns_label(model: str, name: str) -> None:
    assert endpoint_name(model) == name
    assert EndpointSpec(name=name, model=model, traffic=Traffic(percent={1: 100}), port=1)


def test_names_of_services_fit() -> None:
    name = service_name("x" * 30, 10**12)
    assert ServiceSpec(name=name, module="m").name == name


@pytest.mark.parametrize("percent", [{}, {1: 99}, {1: 50, 2: 51}, {1: 150, 2: -50}, {0: 100}])
def test_percentages_add_up(percent: dict[int, int]) -> None:
    with pytest.raises(ValidationError):
        Traffic(percent=percent)


def test_versions_are_all_that_can_get_requests() -> None:
    traffic = Traffic.model_validate(
        {
            "percent": {1: 100, 2: 0},
            "labels": {"canary": 3},
            "matches": [{"header": "x-team", "value": "a", "version": 4}],
            "shadow": {"version": 5},
        }
    )
    assert traffic.versions == (1, 3, 4, 5)


@pytest.mark.parametrize("sticky", [{}, {"cookie": "a", "header": "b"}, {"cookie": "a;b"}])
def test_sticky_traffic_needs_one_identity(sticky: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Traffic.model_validate({"percent": {1: 100}, "sticky": sticky})


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("100/s", (100, 1, 100)),
        ("600/min", (600, 60, 10)),
        ("5/h", (5, 3600, 1)),
        ("9/s:2", (9, 1, 2)),
    ],
)
def test_rates(text: str, parsed: tuple[int, float, int]) -> None:
    assert Limits(rate=text).rate == text
    assert parse_rate(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "100", "0/s", "1.5/s", "1/d", "1/s:0", "1/s:", "-1/s", "1/s "]
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValidationError, match="expected a rate such as"):
        Limits(total_rate=text)


def test_networks_of_proxies() -> None:
    assert Access.model_validate({"proxies": ["10.0.0.0/8", "::1"]}).proxies == (
        "10.0.0.0/8",
        "::1/128",
    )
    for text in ("10.0.0.1/8", "proxy", ""):
        with pytest.raises(ValidationError, match="expected a network"):
            Access.model_validate({"proxies": [text]})


@pytest.mark.parametrize("place", ["http://id.example/keys", "ftp://id.example/keys"])
def test_public_keys_come_from_files_or_over_tls(place: str) -> None:
    assert Access(jwt=Jwt(issuer="i", jwks="/keys")).files == {"jwt"}
    for remote in ("https://id.example/keys", "http://127.0.0.1:1/keys"):
        assert Access(jwt=Jwt(issuer="i", jwks=remote)).files == frozenset()
    with pytest.raises(ValidationError, match="expected a file or an https URL"):
        Jwt(issuer="i", jwks=place)
