"""A real cluster: the one of `KUBECONFIG`, or one that `kubelab` starts on this machine.

A `KUBECONFIG` of kubelab is used as it is, and left running.

The tests of jobs also need a bucket that pods reach: a new one of MinIO beside kubelab, or
with `KUBECONFIG` the one of `TIMONEL_TEST_BUCKET` (a URI; credentials from the variables `AWS_*`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
import s3fs
from packaging.requirements import Requirement

from tests.buckets import client_env, running_minio
from tests.python_path import ROOT
from tests.waiting import until
from timonel.endpoints import Endpoint, deploy, list_endpoints
from timonel.endpoints.engine import documents_of, engine_of
from timonel.storage import Workspace, find_workspace

_PROGRAMS = (
    "tests/__init__.py",
    "tests/contracts/__init__.py",
    "tests/contracts/engine_tasks.py",
    "tests/contracts/service_replica.py",
)
"""What pods of the contract suites run."""
_EXTRAS = ("kubernetes", "s3")
_OF_JOBS = (*_EXTRAS, "mpi")
_NOT_IN_JOBS = frozenset({"ai-edge-litert", "tensorflow", "tensorflow-serving-api", "uv"})
_KINDS = (
    "deployments,services,configmaps,secrets,roles,rolebindings,serviceaccounts,"
    "poddisruptionbudgets,horizontalpodautoscalers"
)
KUBELAB = Path(__file__).parent / "kubelab/kubelab"
_NODES = "3"


@dataclass(frozen=True)
class Cluster:
    """A cluster and a namespace of it.

    Attributes:
        kubeconfig: File with its address and credentials.
        registry: Host of a registry that the cluster pulls from.
        kubectl: The program.
        namespace: Namespace of the tests.
        is_own: Whether kubelab runs it on this machine, so that tests may stop its nodes.
    """

    kubeconfig: str
    registry: str
    kubectl: str
    namespace: str
    is_own: bool

    def run(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl in the namespace and return its output."""
        done = subprocess.run(
            [self.kubectl, "--kubeconfig", self.kubeconfig, "-n", self.namespace, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def apply(self, manifest: dict[str, Any]) -> None:
        self.run("apply", "-f", "-", given=json.dumps(manifest))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with a namespace of its own, in which only restricted pods may run."""
    namespace = f"timonel-test-{uuid.uuid4().hex[:8]}"
    home = Path(os.environ.get("KUBELAB_HOME", "/var/tmp/kubelab"))
    own, kubectl = str(home / "kl0/kubeconfig"), str(home / "bin/kubectl")
    given = os.environ.get("KUBECONFIG")
    if given is None:
        for command in (["build"], ["up", _NODES]):
            subprocess.run([str(KUBELAB), *command], check=True)
    if given in {None, own}:
        found = Cluster(own, "10.200.0.2:5000", kubectl, namespace, is_own=True)
    else:
        registry = os.environ.get("TIMONEL_TEST_REGISTRY")
        assert registry, "set TIMONEL_TEST_REGISTRY to a registry that the cluster pulls from"
        found = Cluster(given, registry, "kubectl", namespace, is_own=False)
    try:
        found.run("create", "namespace", namespace)
        found.run("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        yield found
    finally:
        if given is None:
            subprocess.run([str(KUBELAB), "down"], check=True)
        else:
            found.run("delete", "namespace", namespace, "--wait=false")


@dataclass(frozen=True)
class BucketServer:
    """A server of buckets that this process and pods reach.

    Attributes:
        env: Environment of its clients.
        uri: A place in a bucket for the tests; None: they make buckets.
        process: The server, if it serves these tests only.
    """

    env: dict[str, str]
    uri: str | None
    process: subprocess.Popen[bytes] | None


@pytest.fixture(scope="session")
def bucket_server(cluster: Cluster) -> Iterator[BucketServer]:
    """The server of `TIMONEL_TEST_BUCKET`, or a new one."""
    uri = os.environ.get("TIMONEL_TEST_BUCKET")
    if uri is not None:
        env = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        yield BucketServer(env, uri, None)
        return
    assert cluster.is_own, "set TIMONEL_TEST_BUCKET to a place in a bucket that pods reach"
    # The address of this machine in the network of the nodes.
    shown = subprocess.run(
        ["ip", "-4", "-j", "route", "get", cluster.registry.partition(":")[0]],
        check=True,
        capture_output=True,
        text=True,
    )
    host = json.loads(shown.stdout)[0]["prefsrc"]
    with running_minio(str(Path(cluster.kubectl).with_name("minio")), host) as (url, process):
        yield BucketServer(client_env(url), None, process)


@pytest.fixture(scope="session")
def job_image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with what jobs need, in the versions of this environment."""
    return _image(cluster, "jobs", job_requirements(), tmp_path_factory.mktemp("jobs"))


def job_requirements() -> list[str]:
    """Return what jobs need, in the versions of this environment."""
    # TensorFlow without what it needs for GPUs is half as large.
    return [*_requirements(_OF_JOBS, _NOT_IN_JOBS), f"tensorflow-cpu=={version('tensorflow')}"]


@pytest.fixture(scope="session")
def server_image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with what servers and gateways need, in the versions of this environment."""
    needed = _requirements((*_EXTRAS, "endpoints"), frozenset({"uv"}))
    return _image(cluster, "servers", needed, tmp_path_factory.mktemp("servers"))


def _image(cluster: Cluster, name: str, needed: list[str], code: Path) -> str:
    from timonel.containers import ImageSpec, build_image

    requirements = code / "requirements.txt"
    requirements.write_text("\n".join([*needed, ""]))
    for program in _PROGRAMS:
        (code / program).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / program, code / program)
    environment = {"PYTHONPATH": "/app"}
    spec = ImageSpec(code, base="self", requirements=requirements, environment=environment)
    return build_image(spec, f"{cluster.registry}/timonel/{name}:v1", plain_http=True).name


def _requirements(extras: tuple[str, ...], left_out: frozenset[str]) -> list[str]:
    """Return the requirements of timonel with these extras."""
    found = []
    for each in map(Requirement, requires("timonel") or ()):
        of_extra = any(each.marker.evaluate({"extra": e}) for e in extras) if each.marker else True
        if of_extra and each.name not in left_out:
            found.append(f"{each.name}=={version(each.name)}")
    return found


@pytest.fixture
def job_bucket(
    cluster: Cluster, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    """The URI of a new place in a bucket; pods get its credentials from a Secret."""
    for name, value in bucket_server.env.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": bucket_server.env,
    }
    cluster.apply(secret)
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for setting, value in {"NAMESPACE": cluster.namespace, "SECRET": name}.items():
        monkeypatch.setenv(f"TIMONEL_KUBERNETES_{setting}", value)
    if bucket_server.uri is not None:
        yield f"{bucket_server.uri}/{name}"
        return
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}/team"
    s3fs.S3FileSystem.clear_instance_cache()


@dataclass
class Address:
    """Where clients of this machine find an endpoint."""

    url: str


@dataclass
class Lab:
    """A workspace in a bucket, its endpoints, and the cluster."""

    cluster: Cluster
    workspace: Workspace

    def deploy(self, model: str, **options: object) -> Endpoint:
        return deploy(model, workspace=self.workspace, on="kubernetes", **options)  # type: ignore[arg-type]

    def address(self, endpoint: Endpoint) -> Address:
        shown = self.cluster.run(
            "get",
            "service",
            endpoint.name,
            "-o",
            "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}",
        )
        return Address(f"{endpoint.spec.scheme}://{shown}")

    def pods(self, service: str) -> list[str]:
        shown = self.cluster.run(
            "get", "pods", "-l", f"timonel.dev/service={service}", "-o", "name"
        )
        return shown.split()


def write_model(folder: Path, factor: float) -> None:
    """Write a SavedModel that multiplies."""
    import tensorflow as tf

    class Product(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": factor * x}

    made = Product()
    tf.saved_model.save(made, str(folder), signatures=made.__call__)


@pytest.fixture
def lab(
    cluster: Cluster,
    server_image: str,
    job_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lab]:
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", server_image)
    workspace = find_workspace(job_bucket)
    for number in (1, 2):
        write_model(tmp_path / "digits" / str(number), number)
    s3fs.S3FileSystem().put(
        str(tmp_path / "digits"), f"{workspace.uri.removeprefix('s3://')}/models/", recursive=True
    )
    made = Lab(cluster, workspace)
    yield made
    for endpoint in list_endpoints(workspace):
        endpoint.delete()
    until(lambda: not engine_of(workspace).services(), timeout_s=180)
    assert documents_of(workspace).find() == []
    left = cluster.run("get", _KINDS, "-l", "app.kubernetes.io/managed-by=timonel", "-o", "name")
    assert left.split() == []
