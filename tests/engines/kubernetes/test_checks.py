"""The checks of ``timonel cluster check`` on a fake cluster, with a job that runs there."""

from __future__ import annotations

import os

import pytest

from tests.containers.registry_server import registry_server
from tests.engines.kubernetes.fake_cluster import FakeCluster
from timonel.cli.doctor import cluster as checks
from timonel.cli.doctor.check import Verdict
from timonel.storage import Workspace

pytestmark = pytest.mark.enable_socket


def test_a_cluster_and_a_bucket_that_work(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry_server() as registry:
        registry.add_image("timonel", "1")
        monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", f"{registry.host}/timonel:1")
        found = list(checks.examine(bucket.uri, os.environ))
    assert [check.name for check in found if check.verdict is not Verdict.OK] == []
    assert cluster.objects == {}
    _, names = checks.ObjectStore(bucket.uri).children()
    assert names == ["FORMAT"]
    run = checks.run_job(bucket, 60.0)
    assert run.verdict is Verdict.OK, run
    assert "printed 'timonel " in run.found


def test_a_job_that_does_not_end(bucket: Workspace, cluster: FakeCluster) -> None:
    run = checks.run_job(bucket, 0.0)
    assert run.verdict is Verdict.FAIL
    assert "is pending" in run.found
    assert "timonel logs check-" in (run.hint or "")
