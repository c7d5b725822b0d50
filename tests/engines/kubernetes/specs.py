"""Job specifications and settings of the tests."""

from __future__ import annotations

from typing import Any

from timonel.engines import JobSpec, RoleSpec
from timonel.engines.kubernetes.settings import ClusterSettings

IMAGE = "registry.example/team/train@sha256:" + "0" * 64
SETTINGS = ClusterSettings(namespace="team", image=IMAGE)
WORKSPACE = "s3://bucket/team"


def spec(*roles: RoleSpec, job_id: str = "train-flowers", **fields: Any) -> JobSpec:
    roles = roles or (RoleSpec(name="worker", replicas=2),)
    return JobSpec(job_id=job_id, module="timonel.training.worker", roles=roles, **fields)
