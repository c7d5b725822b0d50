"""Checks of specifications."""

from __future__ import annotations

from pathlib import Path

import pytest

from timonel.endpoints.autoscaling import ScalingPolicy
from timonel.endpoints.checks import check_spec
from timonel.endpoints.spec import EndpointSpec
from timonel.errors import SpecError
from timonel.storage import find_workspace


@pytest.mark.parametrize(
    "policy", [ScalingPolicy(metric="cpu"), ScalingPolicy(metric="rps", algorithm="hpa")]
)
def test_an_endpoint_is_not_scaled_by_what_is_not_measured(
    policy: ScalingPolicy, tmp_path: Path
) -> None:
    workspace = find_workspace(tmp_path / ".timonel", create=True)
    spec = EndpointSpec(
        name="digits", model="digits", port=8501, traffic={"percent": {1: 100}}, scaling=policy
    )
    with pytest.raises(SpecError, match="scale by concurrency or rps"):
        check_spec(spec, workspace)
