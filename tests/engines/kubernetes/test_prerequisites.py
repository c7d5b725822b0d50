"""Checks of the queue and the claim of jobs, before a job is created."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.kubernetes.memory_api import MemoryApi
from tests.engines.kubernetes.specs import SETTINGS, spec
from timonel.engines.kubernetes import KubernetesEngine
from timonel.engines.kubernetes.job_store import check_writable
from timonel.engines.kubernetes.prerequisites import check_pod_user
from timonel.engines.kubernetes.rights import ClusterRight
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import InputError, SpecError
from timonel.storage import Workspace, find_workspace
from timonel.storage.workspace import CLAIM_VARIABLE

pytestmark = pytest.mark.enable_socket

_WITH_QUEUE = SETTINGS.model_copy(update={"queue": "vision"})
_WITH_CLAIM = SETTINGS.model_copy(update={"claim": "tema:/mnt/team"})


def test_a_queue_that_does_not_exist_is_an_error(bucket: Workspace) -> None:
    api = MemoryApi()
    engine = KubernetesEngine(bucket, api, _WITH_QUEUE)
    with pytest.raises(SpecError, match="no queue 'vision' in namespace 'team'") as raised:
        engine.submit(spec())
    assert "'kubectl get localqueues -n team'" in str(raised.value.hint)
    assert not api.objects
    api.objects["LocalQueue", "vision"] = {"metadata": {"name": "vision"}}
    engine.submit(spec())
    assert ("Job", "train-flowers") in api.objects


def test_a_queue_without_kueue_is_an_error(bucket: Workspace) -> None:
    api = MemoryApi()
    api.unknown.add("LocalQueue")
    with pytest.raises(SpecError, match="Kueue is not installed in this cluster") as raised:
        KubernetesEngine(bucket, api, _WITH_QUEUE).submit(spec())
    assert "unset TIMONEL_KUBERNETES_QUEUE" in str(raised.value.hint)
    assert not api.objects


def test_users_who_may_not_read_queues_can_use_one(bucket: Workspace) -> None:
    api = MemoryApi()
    api.denied.add(ClusterRight("kueue.x-k8s.io", "localqueues", "get"))
    KubernetesEngine(bucket, api, _WITH_QUEUE).submit(spec())
    assert ("Job", "train-flowers") in api.objects


def test_a_claim_that_does_not_exist_is_an_error(bucket: Workspace) -> None:
    api = MemoryApi()
    engine = KubernetesEngine(bucket, api, _WITH_CLAIM)
    expected = "no PersistentVolumeClaim 'tema' in namespace 'team'"
    with pytest.raises(SpecError, match=expected) as raised:
        engine.submit(spec())
    assert "set TIMONEL_KUBERNETES_CLAIM to NAME:/mnt/team with a NAME" in str(raised.value.hint)
    assert not api.objects
    api.objects["PersistentVolumeClaim", "tema"] = {"metadata": {"name": "tema"}}
    engine.submit(spec())
    assert ("Job", "train-flowers") in api.objects


def test_users_who_may_not_read_claims_can_use_one(bucket: Workspace) -> None:
    api = MemoryApi()
    api.denied.add(ClusterRight("", "persistentvolumeclaims", "get"))
    KubernetesEngine(bucket, api, _WITH_CLAIM).submit(spec())
    assert ("Job", "train-flowers") in api.objects


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a claim that each user can reach, unlike pytest's folders."""
    if os.geteuid():
        pytest.skip("only root can act as another user")
    monkeypatch.delenv("TIMONEL_KUBERNETES_USER", raising=False)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv(CLAIM_VARIABLE, f"team:{folder}")
        monkeypatch.setenv("XDG_CACHE_HOME", f"{folder}/cache")
        yield Path(folder)


@pytest.mark.parametrize("user", [None, "1000:1000"])
def test_jobs_of_root_that_pods_could_not_write_are_refused(
    team: Path, user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_USER", user or "")
    settings = ClusterSettings.of(os.environ).model_copy(update={"image": "timonel"})
    api = MemoryApi()
    api.objects["PersistentVolumeClaim", "team"] = {"metadata": {"name": "team"}}
    (team / "ws").mkdir()
    os.chown(team / "ws", 1000, 1000)  # the folder of the job would be root's
    engine = KubernetesEngine(find_workspace(team / "ws"), api, settings)
    expected = f"pods run as user {1000 if user else 65532}, which cannot write what root makes in"
    with pytest.raises(SpecError, match=expected) as raised:
        engine.submit(spec())
    assert "another user than root" in str(raised.value.hint)
    assert set(api.objects) == {("PersistentVolumeClaim", "team")}
    assert not list((team / "ws").glob("check-*"))


def test_root_may_submit_where_pods_can_write_its_folders(team: Path) -> None:
    settings = ClusterSettings.of(os.environ)
    before = os.umask(0)
    try:
        check_pod_user(team, settings)
    finally:
        os.umask(before)
    with pytest.raises(SpecError, match="cannot write what root makes"):
        check_pod_user(team, settings)


def test_pods_that_cannot_write_a_job_name_their_user(team: Path) -> None:
    workspace = find_workspace(team / "ws")
    (team / "ws").chmod(0o755)
    os.seteuid(65532)
    try:
        with pytest.raises(InputError, match=r"cannot write .*Permission denied") as raised:
            check_writable(workspace, "train-flowers")
    finally:
        os.seteuid(0)
    assert raised.value.hint == "pods run as user 65532, who needs write access there"
