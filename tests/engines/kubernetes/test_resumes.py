"""Two clusters with one bucket: each job starts in one of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from urllib3.exceptions import InsecureRequestWarning

from tests.engines.kubernetes.fake_cluster import FakeCluster
from tests.engines.kubernetes.test_engine import submission
from timonel.engines import JobState
from timonel.engines.kubernetes import KubernetesEngine
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.job_store import read_outcome, read_spec
from timonel.engines.kubernetes.kubeconfig import authority_of
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.kubernetes.submission import Submission
from timonel.errors import AlreadyExistsError, EngineError, JobError
from timonel.storage import Workspace

pytestmark = pytest.mark.enable_socket


@pytest.fixture
def engine(bucket: Workspace, cluster: FakeCluster) -> KubernetesEngine:
    cluster.is_full = True
    return KubernetesEngine.of(bucket)


@pytest.fixture
def other(
    bucket: Workspace, engine: KubernetesEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KubernetesEngine]:
    """The engine of another cluster, with the same bucket."""
    (tmp_path / "other/tmp").mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    cluster = FakeCluster(tmp_path / "other", kept)
    cluster.is_full = True
    with monkeypatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        found = KubernetesEngine.of(bucket)
    yield found
    cluster.close()


def test_of_two_submissions_one_starts(
    bucket: Workspace,
    engine: KubernetesEngine,
    other: KubernetesEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = submission(bucket)
    check = other._check_new

    def late(job_id: str) -> None:
        check(job_id)
        engine.submit(spec)

    monkeypatch.setattr(other, "_check_new", late)
    with pytest.raises(AlreadyExistsError) as caught:
        other.submit(spec)
    assert f"exists already in the namespace 'team' of {engine._api.server}" in str(caught.value)
    assert other.jobs() == []
    assert read_spec(bucket, "one").job_id == "one"
    assert engine.status("one").state is JobState.PENDING


@pytest.mark.process
def test_a_resumed_job_is_not_resumed_in_another_cluster(
    bucket: Workspace,
    engine: KubernetesEngine,
    other: KubernetesEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine.submit(submission(bucket))
    engine.cancel("one")
    current = other._current

    def late(job_id: str) -> Any:
        found = current(job_id)
        engine.resume(job_id)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(other, "_current", late)
        with pytest.raises(JobError) as caught:
            other.resume("one")
    assert f"one was resumed in the namespace 'team' of {engine._api.server}" in str(caught.value)
    with pytest.raises(EngineError, match=f"of {engine._api.server}, and is not here"):
        other.resume("one")
    assert other.jobs() == []

    engine.cancel("one")  # an end that nobody has resumed
    other.resume("one")
    assert other.status("one").state is JobState.PENDING
    with pytest.raises(EngineError, match=f"of {other._api.server}, and is not here"):
        engine.resume("one")


@pytest.mark.process
def test_an_interrupted_resume_is_repeated_in_its_cluster(
    bucket: Workspace, engine: KubernetesEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.submit(submission(bucket))
    engine.cancel("one")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Submission, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.resume("one")
    engine.resume("one")
    assert engine.status("one").state is JobState.PENDING


def test_a_job_of_another_cluster_is_not_taken_for_a_deleted_one(
    bucket: Workspace, engine: KubernetesEngine, other: KubernetesEngine
) -> None:
    engine.submit(submission(bucket))
    with pytest.raises(EngineError, match=f"in the namespace 'team' of {engine._api.server}, and"):
        other.status("one")
    assert engine.status("one").state is JobState.PENDING


def test_a_job_of_another_cluster_at_the_same_address_is_not_taken_for_a_deleted_one(
    bucket: Workspace,
    engine: KubernetesEngine,
    cluster: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine.submit(submission(bucket))
    cluster.close()  # the tunnel now leads to another cluster
    (tmp_path / "other/tmp").mkdir(parents=True)
    successor = FakeCluster(tmp_path / "other", cluster.env, port=cluster.port)
    try:
        monkeypatch.setenv("KUBECONFIG", str(successor.kubeconfig))
        other = KubernetesEngine.of(bucket)
        assert other._api.server == engine._api.server
        for command in (other.status, other.resume):
            with pytest.raises(EngineError, match="one was started in another cluster"):
                command("one")
        assert read_outcome(bucket, "one") is None
        assert successor.objects == {}
    finally:
        successor.close()


@pytest.mark.process
def test_without_verification_no_job_counts_as_deleted(
    bucket: Workspace,
    engine: KubernetesEngine,
    cluster: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine.submit(submission(bucket))
    cluster.objects.clear()
    config = json.loads(cluster.kubeconfig.read_text())
    (named,) = config["clusters"]
    del named["cluster"]["certificate-authority"]
    named["cluster"]["insecure-skip-tls-verify"] = True
    (tmp_path / "insecure").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "insecure"))
    with pytest.warns(InsecureRequestWarning), pytest.raises(EngineError, match="is not verified"):
        KubernetesEngine.of(bucket).status("one")
    assert engine.status("one").state is JobState.FAILED


@pytest.mark.parametrize("is_in_pod", [False, True])
def test_copies_of_an_authority_are_equal(cluster: FakeCluster, is_in_pod: bool) -> None:
    content = (cluster.root / "ca.pem").read_text()
    copy = cluster.root / "copy.pem"
    copy.write_text(f"the authority of the lab\n{content}\n" if is_in_pod else content)
    configuration = SimpleNamespace(host="https://lab", verify_ssl=True, ssl_ca_cert=str(copy))
    assert authority_of(configuration) == Api.connect(ClusterSettings()).authority
