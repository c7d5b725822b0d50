"""Bases of specifications and statuses; resources and placement of tasks and replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Requested(BaseModel):
    """Part of a specification: immutable, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Observed(BaseModel):
    """Part of a status: immutable. Ignores unknown fields, as a newer engine may write them."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Resources(Requested):
    """Resources of one task or replica; what is not stated is not limited."""

    cpus: float | None = Field(default=None, gt=0, description="CPUs; may be a fraction.")
    memory_bytes: int | None = Field(default=None, gt=0, description="Memory in bytes.")
    accelerators: Mapping[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict, description="Accelerators by type, such as nvidia.com/gpu."
    )


class Toleration(Requested):
    """A taint of machines that is accepted; the fields are Kubernetes'."""

    key: str = Field(description="Key of the taint.")
    value: str | None = Field(default=None, description="Value of the taint; None: any.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; None: any."
    )


class Volume(Requested):
    """Storage that is mounted into tasks."""

    source: str = Field(description="What is mounted, in the engine's terms, as in pvc://NAME.")
    mount_path: str = Field(pattern=r"^/", description="Where tasks see it.")
    read_only: bool = Field(default=False, description="Whether tasks can only read it.")


class Placement(Requested):
    """Which machines may run a task."""

    node_selector: Mapping[str, str] = Field(
        default_factory=dict, description="Labels that a machine must have."
    )
    tolerations: tuple[Toleration, ...] = Field(default=(), description="Accepted taints.")
    priority_class: str | None = Field(
        default=None, description="Class of tasks that may displace others, or be displaced."
    )
