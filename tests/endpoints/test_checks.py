"""Checks of specifications."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endpoints.harness import write_version
from timonel.endpoints.autoscaling import ScalingPolicy
from timonel.endpoints.checks import FIRST_PORT, check_port, check_spec, free_port
from timonel.endpoints.folder import EndpointFolder
from timonel.endpoints.spec import EndpointSpec
from timonel.engines.resources import Resources
from timonel.errors import ServingError, SpecError
from timonel.storage import find_workspace
from timonel.storage.document_store import FolderDocuments


@pytest.mark.parametrize(
    "policy",
    [
        ScalingPolicy(metric="memory"),
        ScalingPolicy(metric="cpu", further_metrics=({"metric": "memory", "target": 80},)),
    ],
)
def test_a_share_of_memory_needs_a_requested_amount(policy: ScalingPolicy, tmp_path: Path) -> None:
    workspace = find_workspace(tmp_path / ".timonel", create=True)
    write_version(workspace, 1)
    spec = EndpointSpec(
        name="digits", model="digits", port=8501, traffic={"percent": {1: 100}}, scaling=policy
    )
    with pytest.raises(SpecError, match="memory that a replica requests"):
        check_spec(spec, workspace)
    check_spec(spec.model_copy(update={"resources": Resources(memory_bytes=1 << 30)}), workspace)


def test_cpu_and_amounts_of_memory_need_none(tmp_path: Path) -> None:
    workspace = find_workspace(tmp_path / ".timonel", create=True)
    write_version(workspace, 1)
    for policy in (
        ScalingPolicy(metric="cpu"),
        ScalingPolicy(metric="memory", target=512, target_unit="MiB"),
    ):
        traffic = {"percent": {1: 100}}
        check_spec(
            EndpointSpec(name="a", model="digits", port=1, traffic=traffic, scaling=policy),
            workspace,
        )


def test_ports_of_unreadable_endpoints_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = find_workspace(tmp_path / ".timonel", create=True)
    monkeypatch.setattr("timonel.endpoints.checks._is_free", lambda _host, _port: True)
    for name, port in (("a", FIRST_PORT), ("b", FIRST_PORT + 1)):
        spec = EndpointSpec(name=name, model="digits", port=port, traffic={"percent": {1: 100}})
        EndpointFolder(FolderDocuments(workspace.endpoints), name).add(spec, "deploy", after=0)
    assert free_port("127.0.0.1", workspace) == FIRST_PORT + 2
    (workspace.endpoints / "a/revisions/000001.json").write_text("{")
    assert free_port("127.0.0.1", workspace) == FIRST_PORT
    check_port("127.0.0.1", FIRST_PORT, workspace)
    with pytest.raises(ServingError, match="endpoint b has the port"):
        check_port("127.0.0.1", FIRST_PORT + 1, workspace)
