"""Checks of specifications."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endpoints.harness import write_version
from timonel.endpoints.autoscaling import ScalingPolicy
from timonel.endpoints.checks import check_spec
from timonel.endpoints.spec import EndpointSpec
from timonel.engines.resources import Resources
from timonel.errors import SpecError
from timonel.storage import find_workspace


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
