"""Endpoints on a real cluster: real servers, real gateways, and clients that count what is lost."""

from __future__ import annotations

import json
import os
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import s3fs

from tests.cluster.conftest import Address, Lab
from tests.endpoints.harness import Load
from tests.serving.auth.certificates import Authority
from tests.waiting import until
from timonel.endpoints import Endpoint, list_endpoints, open_endpoint
from timonel.endpoints.control.service import SERVICE
from timonel.endpoints.engine import engine_of
from timonel.errors import TimonelError

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    # The registry, the nodes and the bucket are in network namespaces of this machine.
    pytest.mark.enable_socket,
]
_CONTROL = "replica"
_HPA = "horizontalpodautoscaler.autoscaling/"
IDLE = {"window_s": 6, "scale_to_zero_grace_s": 0, "min_replicas": 0, "max_replicas": 3}


@pytest.fixture
def endpoint(lab: Lab) -> Endpoint:
    return lab.deploy("digits/1", min_replicas=2, max_replicas=4)


def test_versions_change_under_load_without_a_failed_request(lab: Lab, endpoint: Endpoint) -> None:
    address = lab.address(endpoint)
    assert endpoint.url.endswith(f":{endpoint.spec.port}")
    with Load(address, 4) as load:  # type: ignore[arg-type]
        lab.deploy("digits/2")
        until(lambda: "2" in load.versions)
        load.more(100)
        endpoint.rollback()
        endpoint.wait()
        load.more(100)
    print(f"versions: {load.answered} answered, {len(load.failures)} failed")
    assert (load.failures, load.versions) == ([], {"1", "2"})
    # A replica that is just starting or gone has no lines.
    until(lambda: all(endpoint.log(name, each) for each, name in endpoint.log_sources()))


def test_what_is_lost_loses_no_request(lab: Lab, endpoint: Endpoint) -> None:
    address = lab.address(endpoint)
    with Load(address, 4) as load:  # type: ignore[arg-type]
        victim = lab.pods("digits-v1")[0]
        lab.cluster.run("delete", victim, "--grace-period=0", "--force", "--wait=false")
        load.more(200)
        until(lambda: len(engine_of(lab.workspace).service("digits-v1").ready) == 2, timeout_s=120)
        print(f"replica lost: {load.answered} answered, failed: {load.failures}")
        assert load.failures == []
        # A control plane is killed; its gateway goes on.
        for pod in lab.pods(SERVICE):
            # It is the first process there, which no one inside can kill.
            program = "import os; os.kill(1, 15)"
            lab.cluster.run("exec", pod, "-c", _CONTROL, "--", "python3", "-c", program)
        load.more(200)
        print(f"control planes ended: {load.answered} answered, failed: {load.failures}")
        assert load.failures == []
        until(lambda: endpoint.state == "ready", timeout_s=60)
    assert load.failures == []


def test_a_gateway_that_stops_answers_its_requests(lab: Lab, endpoint: Endpoint) -> None:
    address = lab.address(endpoint)
    with Load(address, 4) as load:  # type: ignore[arg-type]
        lab.cluster.run("delete", lab.pods(SERVICE)[0], "--wait=false")
        load.more(300)
        until(lambda: len(engine_of(lab.workspace).service(SERVICE).ready) == 2, timeout_s=120)
        load.more(100)
    print(f"gateway stopped: {load.answered} answered, failed: {load.failures}")
    assert load.failures == []


def test_to_zero_and_back(lab: Lab, endpoint: Endpoint) -> None:
    answer = first_after_idle(lab, endpoint, [3.0])
    assert answer == {"predictions": [3.0]}


def test_to_zero_and_back_with_a_larger_model(lab: Lab, tmp_path: Path) -> None:
    import keras

    keras.applications.MobileNetV2(weights=None).export(str(tmp_path / "mobilenet/1"))
    place = f"{lab.workspace.uri.removeprefix('s3://')}/models/"
    s3fs.S3FileSystem().put(str(tmp_path / "mobilenet"), place, recursive=True)
    endpoint = lab.deploy("mobilenet/1", min_replicas=1, max_replicas=1)
    answer = first_after_idle(lab, endpoint, np.zeros((1, 224, 224, 3)).tolist())
    assert np.shape(answer["predictions"]) == (1, 1000)


def test_the_cluster_itself_scales_by_metrics_of_its_own(lab: Lab, tmp_path: Path) -> None:
    used = {"type": "AverageValue", "averageValue": "100m"}
    metric = {"name": "cpu", "container": _CONTROL, "target": used}
    manifest = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "spec": {
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [{"type": "ContainerResource", "containerResource": metric}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }
    policy = tmp_path / "hpa.yaml"
    policy.write_text(
        json.dumps({**manifest, "spec": {**manifest["spec"], "metrics": [{"type": "Pods"}]}})
    )
    with pytest.raises(TimonelError, match="must populate information for the given metric source"):
        lab.deploy("digits/1", policy=policy)
    assert not list_endpoints(lab.workspace)
    policy.write_text(json.dumps(manifest))
    endpoint = lab.deploy("digits/1", policy=policy)
    service = f"{endpoint.name}-v1"

    def ready() -> int:
        return len(engine_of(lab.workspace).service(service).ready)

    with Load(lab.address(endpoint), 4) as load:  # type: ignore[arg-type]
        until(lambda: ready() > 1)
        lab.deploy("digits/2")  # which gets one, too
        until(lambda: lab.cluster.run("get", "hpa", "-o", "name").split() == [_HPA + "digits-v2"])
    print(f"scaled by the cluster: {load.answered} answered, failed: {load.failures}")
    assert load.failures == []
    scaling = {"min_replicas": 1, "max_replicas": 1}
    endpoint.change("without", scaling=scaling)
    until(lambda: not lab.cluster.run("get", "hpa", "-o", "name").split())


def first_after_idle(lab: Lab, endpoint: Endpoint, instances: list[object]) -> Any:
    """Let an endpoint scale to zero, and return the answer to the next request."""
    address = lab.address(endpoint)
    scaling = {**endpoint.spec.scaling.model_dump(), **IDLE}
    endpoint.change("idle", scaling=scaling)
    service = f"{endpoint.name}-v1"
    until(lambda: not engine_of(lab.workspace).service(service).replicas, timeout_s=120)
    until(lambda: endpoint.state == "idle", timeout_s=30)
    begun = time.monotonic()
    url = f"{address.url}/v1/models/{endpoint.name}:predict"
    answer = httpx.post(url, json={"instances": instances}, timeout=120)
    print(f"{endpoint.name}: first answer after idle: {time.monotonic() - begun:.1f} s")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_keys_and_certificates_change_without_a_failed_request(lab: Lab, tmp_path: Path) -> None:
    authority, keys = Authority(), tmp_path / "keys"
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.check_hostname = False  # the certificate has no address of the cluster

    def status(address: Address, key: str | None = None) -> int:
        headers = {} if key is None else {"x-api-key": key}
        with httpx.Client(verify=context, headers=headers, timeout=120) as client:
            body = {"instances": [3.0]}
            return client.post(f"{address.url}/v1/models/digits:predict", json=body).status_code

    def certificate(address: Address) -> str:
        url = httpx.URL(address.url)
        return ssl.get_server_certificate((url.host, url.port or 443)).strip()

    def is_everywhere(condition: Callable[[], bool]) -> bool:
        # Connections are spread over two gateways.
        return all(condition() for _ in range(20))

    cert, key = authority.issue(tmp_path, "first")
    endpoint = lab.deploy("digits/1", min_replicas=2, tls_cert=cert, tls_key=key)
    assert endpoint.url.startswith("https://")
    address = lab.address(endpoint)
    assert status(address) == 200
    assert certificate(address) == cert.read_text().strip()
    with Load(address, 4) as load:  # type: ignore[arg-type]
        renewed, key = authority.issue(tmp_path, "renewed")
        lab.deploy("digits", tls_cert=renewed, tls_key=key)
        until(lambda: is_everywhere(lambda: certificate(address) == renewed.read_text().strip()))
        load.more(200)
    print(f"certificate renewed: {load.answered} answered, failed: {load.failures}")
    assert load.failures == []

    old, new = "old-0123456789abcdef", "new-0123456789abcdef"
    keys.write_text(f"shop={old}\n")
    lab.deploy("digits", api_keys=keys)
    until(lambda: is_everywhere(lambda: status(address) == 401))
    assert is_everywhere(lambda: status(address, old) == 200)
    assert status(address, new) == 401
    keys.write_text(f"shop={old}\nother={new}\n")
    lab.deploy("digits", api_keys=keys)
    until(lambda: is_everywhere(lambda: status(address, new) == 200))
    assert is_everywhere(lambda: status(address, old) == 200)
    keys.write_text(f"shop={old}\n")
    lab.deploy("digits", api_keys=keys)
    until(lambda: is_everywhere(lambda: status(address, new) == 401))
    endpoint.rollback(endpoint.revision.number - 1)
    endpoint.wait()
    assert is_everywhere(lambda: (status(address, old), status(address, new)) == (200, 401))
    # A gateway that starts later has them, too.
    before = lab.pods(SERVICE)[0]
    lab.cluster.run("delete", before)
    until(lambda: len(engine_of(lab.workspace).service(SERVICE).ready) == 2, timeout_s=120)
    assert before not in lab.pods(SERVICE)
    assert is_everywhere(lambda: (status(address, old), status(address)) == (200, 401))
    shown = lab.cluster.run("get", "configmaps", "-o", "json")
    assert old not in shown
    assert "PRIVATE KEY" not in shown


def test_traffic_goes_on_while_the_api_server_is_away(lab: Lab, endpoint: Endpoint) -> None:
    if not lab.cluster.is_own:
        pytest.skip("an API server is stopped only in a cluster of the tests' own")
    address = lab.address(endpoint)
    (server,) = _processes("kube-apiserver")
    with Load(address, 4) as load:  # type: ignore[arg-type]
        os.kill(server, signal.SIGSTOP)
        try:
            away_until = time.monotonic() + 30
            while time.monotonic() < away_until:
                load.more(20)
        finally:
            os.kill(server, signal.SIGCONT)
        until(lambda: open_endpoint(lab.workspace, "digits").state == "ready", timeout_s=60)
    print(f"API server away for 30 s: {load.answered} answered, failed: {load.failures}")
    assert load.failures == []


def _processes(program: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == program[:15]:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
