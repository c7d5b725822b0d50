"""Manifests of services: compared with files, and changes of Deployments.

After an intended change, write the files again with ``UPDATE_GOLDEN=1 pytest <this file>``; tests
whose file changed fail once.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines.kubernetes.specs import IMAGE, SETTINGS, WORKSPACE
from timonel.engines import (
    HealthCheck,
    Placement,
    Resources,
    ServiceSpec,
    Sidecar,
    Toleration,
    Volume,
)
from timonel.engines.kubernetes.manifests import Manifest, owned
from timonel.engines.kubernetes.names import REVISION_LABEL, REVISIONS_ANNOTATION
from timonel.engines.kubernetes.services.manifests import applied, service_manifests
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import SpecError

_GOLDEN = Path(__file__).parent / "golden"


def _spec(**fields: Any) -> ServiceSpec:
    values: dict[str, Any] = {"name": "digits", "module": "timonel", "args": ("serve", "digits")}
    return ServiceSpec.model_validate({**values, **fields})


_SHAPES: dict[str, tuple[ServiceSpec, ClusterSettings]] = {
    "plain": (_spec(), SETTINGS),
    "claim": (
        _spec(uses_engine=True),
        SETTINGS.model_copy(update={"claim": "team:/mnt/team", "user": "1000:100"}),
    ),
    "model-server": (
        _spec(
            revision=7,
            args=("serve", "digits", "--host", "$(HOST)", "--rest-port", "$(PORT_HTTP)"),
            env={"PRICE": "$(PORT) $5"},
            ports=("http", "grpc"),
            replicas=3,
            check=HealthCheck(
                ready_path="/readyz", alive_path="/livez", period_s=0.5, timeout_s=1.5
            ),
            start_timeout_s=90.5,
            hang_timeout_s=30,
            stop_delay_s=2.5,
            stop_grace_s=60,
            workspace=WORKSPACE,
            image="registry.example/team/serve:v2",
            volumes=(Volume(source="pvc://models", mount_path="/models", read_only=True),),
            resources=Resources(cpus=2, memory_bytes=8 << 30, accelerators={"nvidia.com/gpu": 1}),
            placement=Placement(
                node_selector={"cloud.example/gpu": "l4"},
                tolerations=(Toleration(key="nvidia.com/gpu", effect="NoSchedule"),),
                priority_class="serving",
            ),
        ),
        ClusterSettings(
            namespace="team",
            image=IMAGE,
            image_pull_secret="registry",
            service_account="server",
            secret="bucket",
            mirrors="mlflow",
        ),
    ),
    "control-plane": (
        _spec(
            name="endpoints",
            module=None,
            command=("timonel", "endpoints"),
            args=("--socket", "$(SHARED)/socket"),
            replicas=2,
            sidecar=Sidecar(
                name="envoy",
                command=("envoy", "-c", "$(SHARED)/envoy.json"),
                ports={"public": 8500, "admin": 9901},
                ready_path="/ready",
                resources=Resources(cpus=0.5),
            ),
            uses_engine=True,
            workspace=WORKSPACE,
        ),
        SETTINGS.model_copy(update={"secret": "bucket"}),
    ),
}


@pytest.mark.parametrize("shape", _SHAPES)
def test_manifests_are_those_of_the_file(shape: str) -> None:
    first, *others = service_manifests(*_SHAPES[shape])
    built = [first, *owned([first, *others], "00000000-0000-4000-8000-000000000000")]
    text = yaml.safe_dump_all(json.loads(json.dumps(built)), sort_keys=False, width=100)
    path = _GOLDEN / f"{shape}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        is_changed = not path.exists() or path.read_text() != text
        path.write_text(text)
        assert not is_changed, f"{path.name} has changed; review it and commit it"
    assert path.read_text() == text


def _container(**fields: Any) -> dict[str, Any]:
    template = service_manifests(_spec(**fields), SETTINGS)[0]["spec"]["template"]
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


@pytest.mark.parametrize(
    ("start_s", "period_s", "seconds"), [(1, 0.1, 1), (90.5, 1, 91), (10, 4, 12), (180, 1, 180)]
)
def test_a_replica_has_at_least_its_time_to_start(
    start_s: float, period_s: float, seconds: int
) -> None:
    check = HealthCheck(period_s=period_s)
    probe = _container(start_timeout_s=start_s, check=check)["startupProbe"]
    # The first check comes at once, and the last failure ends the replica.
    assert (probe["failureThreshold"] - 1) * probe["periodSeconds"] == seconds


@pytest.mark.parametrize(("hang_s", "least_s", "most_s"), [(0.5, 1, 2), (10, 10, 13), (30, 30, 37)])
def test_a_hang_ends_a_replica_in_time(hang_s: float, least_s: float, most_s: float) -> None:
    check = HealthCheck(alive_path="/livez")
    probe = _container(hang_timeout_s=hang_s, check=check)["livenessProbe"]
    period_s = probe["periodSeconds"]
    silent_s = (probe["failureThreshold"] - 1) * period_s + probe["timeoutSeconds"]
    assert least_s <= silent_s <= silent_s + period_s <= most_s
    assert "livenessProbe" not in _container(hang_timeout_s=hang_s)


def test_a_service_without_a_grace_still_waits_for_its_processes() -> None:
    template = service_manifests(_spec(stop_grace_s=0), SETTINGS)[0]["spec"]["template"]
    assert template["spec"]["terminationGracePeriodSeconds"] == 1


def test_what_the_cluster_cannot_run() -> None:
    with pytest.raises(SpecError, match="service digits has no container image"):
        service_manifests(_spec(), ClusterSettings(namespace="team"))
    with pytest.raises(SpecError, match="cannot mount"):
        service_manifests(_spec(volumes=[Volume(source="/data", mount_path="/data")]), SETTINGS)
    named = Sidecar(name="replica", command=("envoy",))
    with pytest.raises(SpecError, match="cannot be 'replica'"):
        service_manifests(_spec(sidecar=named), SETTINGS)
    portless = Sidecar(name="envoy", command=("envoy",), ready_path="/ready")
    with pytest.raises(SpecError, match="no port"):
        service_manifests(_spec(sidecar=portless), SETTINGS)


def _running(spec: ServiceSpec) -> Manifest:
    """Return the Deployment of a service that has started."""
    found = copy.deepcopy(service_manifests(spec, SETTINGS)[0])
    found["metadata"] |= {"uid": "1", "resourceVersion": "5"}
    del found["spec"]["paused"]
    return found


def _apply(deployment: Manifest, spec: ServiceSpec) -> Manifest | None:
    return applied(deployment, service_manifests(spec, SETTINGS)[0], spec)


def test_applying_the_same_again_changes_nothing() -> None:
    before = _running(_spec(replicas=2))
    assert _apply(before, _spec(replicas=2)) is None
    assert _apply(before, _spec()) is None
    other = SETTINGS.model_copy(update={"image": "other"})
    assert applied(before, service_manifests(_spec(), other)[0], _spec()) is None


def test_an_unfinished_service_is_started_by_another_apply() -> None:
    before = service_manifests(_spec(), SETTINGS)[0]
    after = _apply(before, _spec())
    assert after is not None
    assert after["spec"] == {**before["spec"], "paused": False}


def test_a_change_replaces_the_template_and_keeps_the_number() -> None:
    before = _running(_spec(replicas=4, placement=Placement(node_selector={"gpu": "l4"})))
    before["metadata"]["annotations"]["example.org/team"] = "vision"
    after = _apply(before, _spec(revision=2))
    assert after is not None
    assert after["spec"]["replicas"] == 4
    assert "nodeSelector" not in after["spec"]["template"]["spec"]
    assert after["metadata"]["labels"][REVISION_LABEL] == "2"
    assert after["metadata"]["resourceVersion"] == "5"
    assert after["metadata"]["annotations"]["example.org/team"] == "vision"
    again = _apply(after, _spec(replicas=1, placement=Placement(node_selector={"gpu": "l4"})))
    assert again is not None
    assert (again["spec"]["replicas"], again["spec"]["paused"]) == (1, False)
    assert again["spec"]["template"] == before["spec"]["template"]


def test_a_number_alone_leaves_the_template() -> None:
    before = _running(_spec())
    other = service_manifests(_spec(), SETTINGS.model_copy(update={"image": "other"}))[0]
    after = applied(before, other, _spec(replicas=2))
    assert after is not None
    assert after["spec"]["template"] == before["spec"]["template"]
    assert after["spec"]["replicas"] == 2


def test_revisions_are_remembered() -> None:
    found = _running(_spec(args=("first",)))
    for revision in range(2, 103):
        with pytest.raises(SpecError, match="revision 1 of digits was applied with other") as e:
            _apply(found, _spec(args=("other",)))
        assert "\n" not in str(e.value)
        if revision == 102:
            break
        found = _apply(found, _spec(revision=revision)) or {}
        if revision == 50:  # used again, so remembered for longer
            found = _apply(found, _spec(args=("first",))) or {}
    revisions = json.loads(found["metadata"]["annotations"][REVISIONS_ANNOTATION])
    assert len(revisions) == 100
    assert list(revisions)[-1] == "101"
    assert "2" not in revisions
