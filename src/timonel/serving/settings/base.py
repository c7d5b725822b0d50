"""What all settings of a server have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings that nobody changes, and in which a word that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
