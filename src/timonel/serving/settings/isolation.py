"""Settings for the processes that isolate versions."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from timonel.units import Seconds

Isolation = Literal["process", "none"]


class ComputeSettings(BaseModel):
    """Settings of processes that each hold one version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hang_timeout_s: Seconds | None = Field(
        default=None,
        gt=0,
        description="A process that was asked something and has said nothing for so long is killed "
        "and started again; by default none is.",
    )
    memory_mib: int = Field(
        default=4096,
        ge=1,
        description="Shared memory for a version's requests, and as much for its answers; taken "
        "only while it is needed.",
    )
