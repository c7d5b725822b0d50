"""Settings of the cluster, from the environment."""

from __future__ import annotations

import pytest

from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import SpecError


@pytest.mark.parametrize(
    "name",
    ["context", "namespace", "image", "image_pull_secret", "service_account", "secret", "queue"],
)
def test_each_setting_has_a_variable(name: str) -> None:
    variable = f"TIMONEL_KUBERNETES_{name.upper()}"
    settings = ClusterSettings.of({variable: "value", "PATH": "/bin"})
    assert settings == ClusterSettings(**{name: "value"})
    assert ClusterSettings.of({variable: ""}) == ClusterSettings()


def test_the_type_of_services_is_one_of_two() -> None:
    variable = "TIMONEL_KUBERNETES_SERVICE_TYPE"
    assert ClusterSettings.of({variable: "LoadBalancer"}).service_type == "LoadBalancer"
    assert ClusterSettings.of({variable: ""}).service_type is None
    with pytest.raises(SpecError, match="must be ClusterIP or LoadBalancer, got 'loadbalancer'"):
        ClusterSettings.of({variable: "loadbalancer"})


@pytest.mark.parametrize("value", ["mlflow,wandb", "none", ""])
def test_mirrors_are_those_of_the_user(value: str) -> None:
    assert ClusterSettings.of({"TIMONEL_MIRRORS": value}).mirrors == value
    assert ClusterSettings.of({}).mirrors is None


def test_every_setting_is_described() -> None:
    assert all(field.description for field in ClusterSettings.model_fields.values())
