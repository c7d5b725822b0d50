from __future__ import annotations

import pytest
from pydantic import ValidationError

from timonel.endpoints.spec import EndpointSpec, Traffic, endpoint_name, service_name
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
