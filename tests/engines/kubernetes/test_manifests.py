"""Manifests of jobs: compared with files, and by properties.

After an intended change, write the files again with ``UPDATE_GOLDEN=1 pytest <this file>``; tests
whose file changed fail once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.kubernetes.specs import IMAGE, SETTINGS, WORKSPACE, spec
from timonel.engines import JobSpec, JobStatus, Placement, Resources, RoleSpec, Toleration, Volume
from timonel.engines.kubernetes import manifests as module
from timonel.engines.kubernetes import names
from timonel.engines.kubernetes.manifests import Manifest, owned
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import SpecError


def job_manifests(
    job: JobSpec, settings: ClusterSettings, workspace: str, token: str
) -> list[Manifest]:
    """Return the manifests of a new job."""
    return module.job_manifests(job, settings, workspace, token, JobStatus.of(job, 1.0))


_GOLDEN = Path(__file__).parent / "golden"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

_SPOT = Placement(
    node_selector={"cloud.example/gpu": "a100", "cloud.example/spot": "true"},
    tolerations=(
        Toleration(key="nvidia.com/gpu", effect="NoSchedule"),
        Toleration(key="cloud.example/spot", value="true", effect="NoSchedule"),
    ),
)
_SHAPES: dict[str, tuple[JobSpec, ClusterSettings]] = {
    "two-workers": (spec(), SETTINGS),
    "parameter-servers": (
        spec(
            RoleSpec(name="chief"),
            RoleSpec(name="worker", replicas=3, on_loss="restart-task"),
            RoleSpec(name="ps", replicas=2, resources=Resources(memory_bytes=8 << 30)),
            RoleSpec(name="evaluator", essential=False),
            success="leader",
        ),
        SETTINGS,
    ),
    "gpus": (
        spec(
            RoleSpec(
                name="worker",
                replicas=4,
                resources=Resources(
                    cpus=7.5, memory_bytes=64 << 30, accelerators={"nvidia.com/gpu": 2}
                ),
                placement=_SPOT,
            ),
            image="registry.example/team/gpu:v1",
            volumes=(
                Volume(source="pvc://photos", mount_path="/data", read_only=True),
                Volume(source="emptydir://", mount_path="/scratch"),
                Volume(source="configmap://settings", mount_path="/etc/settings"),
                Volume(source="secret://keys", mount_path="/etc/keys"),
            ),
            stop_grace_s=90.5,
        ),
        ClusterSettings(
            namespace="team",
            image=IMAGE,
            image_pull_secret="registry",
            service_account="trainer",
            secret="bucket",
            mirrors="mlflow",
        ),
    ),
    "queued": (
        spec(RoleSpec(name="chief"), RoleSpec(name="worker", replicas=3)),
        SETTINGS.model_copy(update={"queue": "vision"}),
    ),
    "claim": (
        spec(volumes=(Volume(source="pvc://photos", mount_path="/data"),)),
        SETTINGS.model_copy(update={"claim": "team:/mnt/team", "user": "1000:100"}),
    ),
    "claim-of-root": (spec(), SETTINGS.model_copy(update={"claim": "team:/mnt/team"})),
    "elastic": (spec(RoleSpec(name="worker", replicas=3, min_replicas=1)), SETTINGS),
}


@pytest.mark.parametrize("shape", _SHAPES)
def test_manifests_are_those_of_the_file(shape: str) -> None:
    job, settings = _SHAPES[shape]
    first, *others = job_manifests(job, settings, WORKSPACE, "0123456789abcdef")
    # Its content is the subject of a test of its own, and grows with the specification.
    _kind(others, "ConfigMap")["data"][names.STATUS_KEY] = "..."
    built = [first, *owned([first, *others], "00000000-0000-4000-8000-000000000000")]
    text = yaml.safe_dump_all(built, sort_keys=False, width=100)
    path = _GOLDEN / f"{shape}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        is_changed = not path.exists() or path.read_text() != text
        path.write_text(text)
        assert not is_changed, f"{path.name} has changed; review it and commit it"
    assert path.read_text() == text


_NAMES = ("chief", "worker", "ps", "evaluator")
_RESOURCES = st.builds(
    Resources,
    cpus=st.none() | st.floats(0.001, 512),
    memory_bytes=st.none() | st.integers(1, 1 << 40),
    accelerators=st.dictionaries(
        st.sampled_from(["nvidia.com/gpu", "google.com/tpu"]), st.integers(1, 16)
    ),
)
_TOLERATIONS = st.builds(
    Toleration,
    key=st.just("spot"),
    value=st.none() | st.just("true"),
    effect=st.none() | st.just("NoSchedule"),
)


@st.composite
def _specs(draw: st.DrawFn) -> JobSpec:
    chosen = draw(st.lists(st.sampled_from(_NAMES), min_size=1, unique=True))
    roles = tuple(
        RoleSpec(
            name=name,
            replicas=1 if name == "chief" else draw(st.integers(1, 300)),
            resources=draw(_RESOURCES),
            placement=Placement(tolerations=tuple(draw(st.lists(_TOLERATIONS, max_size=2)))),
        )
        for name in chosen
    )
    return JobSpec(
        job_id=draw(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,44}[a-z0-9])?", fullmatch=True)),
        module="main",
        roles=roles,
        volumes=draw(
            st.lists(
                st.builds(
                    Volume,
                    source=st.sampled_from(["pvc://data", "emptydir://"]),
                    mount_path=st.just("/data"),
                    read_only=st.booleans(),
                ),
                max_size=1,
            )
        ),
        stop_grace_s=draw(st.floats(0, 600)),
    )


_SETTINGS = st.builds(
    ClusterSettings,
    namespace=st.none() | st.just("team"),
    image=st.just(IMAGE),
    image_pull_secret=st.none() | st.just("registry"),
    service_account=st.none() | st.just("trainer"),
    secret=st.none() | st.just("bucket"),
    queue=st.none() | st.just("vision"),
    mirrors=st.none() | st.just("none"),
)


def _pods(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in manifests:
        if each["kind"] == "Job":
            yield each["spec"]["template"]


def _kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(each for each in manifests if each["kind"] == kind)


@given(_specs(), _SETTINGS)
def test_names_are_dns_labels(job: JobSpec, settings: ClusterSettings) -> None:
    manifests = job_manifests(job, settings, WORKSPACE, "token")
    for each in manifests:
        assert _LABEL.fullmatch(each["metadata"]["name"])
        if each["kind"] == "Job" and "completions" in each["spec"]:
            last = each["spec"]["completions"] - 1
            assert _LABEL.fullmatch(f"{each['metadata']['name']}-{last}")
    kinds_and_names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(set(kinds_and_names)) == len(kinds_and_names)


@given(_specs(), _SETTINGS)
def test_every_object_and_pod_is_labelled(job: JobSpec, settings: ClusterSettings) -> None:
    manifests = job_manifests(job, settings, WORKSPACE, "token")
    for labelled in [*manifests, *_pods(manifests)]:
        found = labelled["metadata"]["labels"]
        assert found["app.kubernetes.io/managed-by"] == "timonel"
        assert found[names.JOB_LABEL] == job.job_id
        assert all(len(value) <= names.MAX_NAME for value in found.values())


@given(_specs(), _SETTINGS)
def test_every_pod_is_restricted(job: JobSpec, settings: ClusterSettings) -> None:
    for pod in _pods(job_manifests(job, settings, WORKSPACE, "token")):
        body = pod["spec"]
        assert body["securityContext"]["runAsNonRoot"]
        assert body["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(body)
        for volume in body["volumes"]:
            assert volume.keys() - {"name"} <= {"emptyDir", "persistentVolumeClaim"}
        for container in body["containers"]:
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"]


@given(_specs(), _SETTINGS)
def test_only_the_coordinator_has_rights(job: JobSpec, settings: ClusterSettings) -> None:
    manifests = job_manifests(job, settings, WORKSPACE, "token")
    coordinator, *tasks = _pods(manifests)
    (subject,) = _kind(manifests, "RoleBinding")["subjects"]
    assert coordinator["spec"]["serviceAccountName"] == subject["name"]
    assert not any(pod["spec"]["automountServiceAccountToken"] for pod in tasks)
    for rule in _kind(manifests, "Role")["rules"]:
        free = (["pods"], ["pods/status"], ["events"])
        assert rule["resources"] in free or rule["resourceNames"]
        assert "*" not in rule["verbs"]


@given(_specs(), _SETTINGS)
def test_the_token_is_in_the_secret_only(job: JobSpec, settings: ClusterSettings) -> None:
    manifests = job_manifests(job, settings, WORKSPACE, "s3cr3t-token")
    assert [each["kind"] for each in manifests if "s3cr3t-token" in str(each)] == ["Secret"]


def test_the_first_status() -> None:
    job, settings = _SHAPES["gpus"]
    manifests = module.job_manifests(job, settings, WORKSPACE, "token", JobStatus.of(job, 5.0))
    status = JobStatus.model_validate_json(_kind(manifests, "ConfigMap")["data"][names.STATUS_KEY])
    assert status == JobStatus.of(job, 5.0)


def test_only_tasks_wait_in_the_queue_all_in_one_group() -> None:
    manifests = job_manifests(*_SHAPES["queued"], WORKSPACE, "token")
    coordinator, *tasks = (pod["metadata"] for pod in _pods(manifests))
    assert "kueue" not in str(coordinator)
    jobs = [each["metadata"] for each in manifests if each["kind"] == "Job"]
    assert "kueue" not in str(jobs)
    for metadata in tasks:
        assert metadata["labels"][names.QUEUE_LABEL] == "vision"
        assert metadata["labels"][names.GROUP_LABEL].startswith("train-flowers-")
        assert metadata["annotations"][names.GROUP_SIZE_ANNOTATION] == "4"


def test_a_resumed_job_is_another_group() -> None:
    groups = set()
    for token in ("one", "two"):
        _, *tasks = _pods(job_manifests(*_SHAPES["queued"], WORKSPACE, token))
        found = {pod["metadata"]["labels"][names.GROUP_LABEL] for pod in tasks}
        assert len(found) == 1
        groups |= found
    assert len(groups) == 2


def test_a_task_can_have_the_addresses_of_all() -> None:
    name = "train-20260301-101500-a1b2"
    large, too_large = (
        spec(RoleSpec(name="worker", replicas=replicas), job_id=name) for replicas in (1747, 1748)
    )
    assert job_manifests(large, SETTINGS, WORKSPACE, "token")
    with pytest.raises(SpecError, match=r"^1,748 tasks are too many: .* 129 KiB"):
        job_manifests(too_large, SETTINGS, WORKSPACE, "token")


def test_an_elastic_job_cannot_wait_in_a_queue() -> None:
    job, _ = _SHAPES["elastic"]
    _, settings = _SHAPES["queued"]
    with pytest.raises(SpecError, match="elastic job cannot wait in the queue 'vision'"):
        job_manifests(job, settings, WORKSPACE, "token")


def test_all_but_the_first_are_owned() -> None:
    manifests = job_manifests(spec(), SETTINGS, WORKSPACE, "token")
    others = owned(manifests, "uid-1")
    assert [each["kind"] for each in others] == [each["kind"] for each in manifests[1:]]
    for each in others:
        (reference,) = each["metadata"]["ownerReferences"]
        assert reference["uid"] == "uid-1"
        assert reference["name"] == manifests[0]["metadata"]["name"]
    assert "ownerReferences" not in str(manifests)


def test_the_order_of_mappings_changes_nothing() -> None:
    def build(*accelerators: str) -> list[dict[str, Any]]:
        resources = Resources(accelerators=dict.fromkeys(accelerators, 1))
        placement = Placement(node_selector=dict.fromkeys(accelerators, "yes"))
        role = RoleSpec(name="worker", resources=resources, placement=placement)
        manifests = job_manifests(spec(role), SETTINGS, WORKSPACE, "token")
        return [each for each in manifests if each["kind"] == "Job"]

    assert str(build("a.example/x", "b.example/y")) == str(build("b.example/y", "a.example/x"))


@pytest.mark.parametrize("length", [53, 54])
def test_names_that_are_too_long_for_pods(length: int) -> None:
    # Its longest host name is the job's plus "-worker-10".
    job = spec(RoleSpec(name="worker", replicas=11), job_id="j" * length)
    if length == 53:
        assert job_manifests(job, SETTINGS, WORKSPACE, "token")
        return
    with pytest.raises(SpecError, match="has 54 characters, and Kubernetes allows 53"):
        job_manifests(job, SETTINGS, WORKSPACE, "token")


def test_a_job_without_an_image() -> None:
    with pytest.raises(SpecError, match="timonel image build HOST/REPOSITORY:TAG"):
        job_manifests(spec(), ClusterSettings(), WORKSPACE, "token")


@pytest.mark.parametrize(
    "source",
    ["pvc://", "pvc://a/b", "secret://", "configmap://a/b", "emptydir://x", "/data", "nfs://a", ""],
)
def test_volumes_that_cannot_be_mounted(source: str) -> None:
    job = spec(volumes=(Volume(source=source, mount_path="/data"),))
    with pytest.raises(SpecError, match="cannot mount the volume"):
        job_manifests(job, SETTINGS, WORKSPACE, "token")


@pytest.mark.parametrize(
    ("paths", "other"),
    [
        (("/data", "/data/"), "'pvc://photos-0' is mounted there"),
        (("/mnt/team/",), "the claim 'team' of TIMONEL_KUBERNETES_CLAIM is mounted there"),
        (("/tmp",), "a folder of timonel is mounted there"),
    ],
)
def test_two_volumes_at_one_path(paths: tuple[str, ...], other: str) -> None:
    settings = SETTINGS.model_copy(update={"claim": "team:/mnt/team/"})
    volumes = [
        Volume(source=f"pvc://photos-{number}", mount_path=path)
        for number, path in enumerate(paths)
    ]
    with pytest.raises(SpecError, match=f"cannot mount 'pvc://photos-.*{other}"):
        job_manifests(spec(volumes=tuple(volumes)), settings, WORKSPACE, "t")


def test_tasks_have_shared_memory_and_the_coordinator_does_not() -> None:
    first, *others = job_manifests(spec(), SETTINGS, WORKSPACE, "token")
    (role,) = [each for each in others if each["kind"] == "Job"]
    templates = [each["spec"]["template"]["spec"] for each in (first, role)]
    paths = [
        {each["mountPath"] for each in template["containers"][0]["volumeMounts"]}
        for template in templates
    ]
    assert ["/dev/shm" in each for each in paths] == [False, True]
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory"}} in templates[1]["volumes"]
