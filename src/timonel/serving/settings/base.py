"""Base class of server settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable settings that reject unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
