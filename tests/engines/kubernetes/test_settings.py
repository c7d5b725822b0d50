"""Settings of the cluster, from the environment."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import SpecError
from timonel.storage import Workspace, find_workspace
from timonel.storage.workspace import CLAIM_VARIABLE


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


def test_routes_need_a_domain() -> None:
    def of(**values: str) -> ClusterSettings:
        return ClusterSettings.of(
            {f"TIMONEL_KUBERNETES_{name.upper()}": value for name, value in values.items()}
        )

    settings = of(domain="models.example.org", gateway="infra/web")
    assert (settings.domain, settings.gateway) == ("models.example.org", "infra/web")
    assert ClusterSettings.of(settings.variables()) == settings
    assert of(domain="example.org", ingress_class="nginx").ingress_class == "nginx"
    for values, reason in (
        ({"gateway": "web"}, "GATEWAY has no effect without a domain"),
        ({"ingress_class": "nginx"}, "INGRESS_CLASS has no effect without a domain"),
        ({"domain": "a.b", "gateway": "a", "ingress_class": "b"}, "GATEWAY contradicts"),
        ({"domain": "https://a.b"}, "DOMAIN must be like models.example.org, got 'https://a.b'"),
        ({"domain": "*.a.b"}, "DOMAIN must be like"),
        ({"domain": "a..b"}, "DOMAIN must be like"),
        ({"domain": "a" * 64 + ".b"}, "DOMAIN must be like"),
        ({"domain": "a.b", "gateway": "a/b/c"}, "GATEWAY must be like NAME or NAMESPACE/NAME"),
    ):
        with pytest.raises(SpecError, match=re.escape(reason)):
            of(**values)


def test_pods_with_a_claim_run_as_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 100)
    settings = ClusterSettings.of({CLAIM_VARIABLE: "team:/mnt/team/"})
    assert (settings.claim_mount(), settings.user) == (("team", "/mnt/team"), "1000:100")
    assert ClusterSettings.of({}).user is None
    # The control plane of an endpoint, in a pod, starts pods as the same user.
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert ClusterSettings.of(settings.variables()) == settings
    assert ClusterSettings.of({CLAIM_VARIABLE: "team:/mnt/team"}).user is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("team", "it has no name or no path"),
        ("/mnt/team", "it has no name or no path"),
        ("team:mnt", "the path must be absolute"),
        ("team:/", "pods cannot mount a claim at '/'"),
        ("Team_X:/mnt", "only lowercase letters, digits, '-' and '.', unlike 'Team_X'"),
        ("a:/b:c", "the path '/b:c' has ':' or an empty part"),
        ("a:/b//c", "the path '/b//c' has ':' or an empty part"),
    ],
)
def test_a_claim_has_a_name_and_a_path(value: str, reason: str) -> None:
    expected = f"CLAIM must be NAME:/PATH, got '{value}': .*{re.escape(reason)}"
    with pytest.raises(SpecError, match=expected):
        ClusterSettings.of({CLAIM_VARIABLE: value})


@pytest.mark.parametrize("value", ["1000", "0:0", "ana:team", "1000:"])
def test_a_user_has_two_numbers(value: str) -> None:
    with pytest.raises(SpecError, match="USER must be UID:GID, with a UID that is not 0"):
        ClusterSettings.of({"TIMONEL_KUBERNETES_USER": value})


def test_users_of_the_group_0_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 0)  # usual on OpenShift
    settings = ClusterSettings.of({CLAIM_VARIABLE: "team:/mnt/team"})
    assert settings.user == "1000:0"
    assert ClusterSettings.of(settings.variables()) == settings


def test_workspaces_that_pods_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    of_machine = find_workspace(tmp_path / "team/old")
    monkeypatch.setenv(CLAIM_VARIABLE, f"team:{tmp_path}/team")
    settings = ClusterSettings.of(os.environ)
    settings.check_visible(Workspace(tmp_path, "s3://bucket/team"), "jobs")
    settings.check_visible(shared := find_workspace(tmp_path / "team/ws"), "jobs")
    with pytest.raises(SpecError, match=r"jobs on Kubernetes cannot use .*old: it was created for"):
        settings.check_visible(of_machine, "jobs")
    with pytest.raises(
        SpecError, match=r"bucket or on a claim, and .*alone is a folder that pods"
    ) as raised:
        settings.check_visible(find_workspace(tmp_path / "alone"), "jobs")
    assert str(raised.value.hint).endswith(f"the path of {CLAIM_VARIABLE}, {tmp_path}/team")
    with pytest.raises(SpecError, match=r"bucket or on a claim, and /.*ws is a folder that pods"):
        ClusterSettings().check_visible(shared, "jobs")


@pytest.mark.parametrize("value", ["mlflow,wandb", "none", ""])
def test_mirrors_are_those_of_the_user(value: str) -> None:
    assert ClusterSettings.of({"TIMONEL_MIRRORS": value}).mirrors == value
    assert ClusterSettings.of({}).mirrors is None


def test_every_setting_is_described() -> None:
    assert all(field.description for field in ClusterSettings.model_fields.values())
