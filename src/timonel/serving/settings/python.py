"""Settings for Python code of models: Python models and hooks."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

EVERY_MODEL = "*"


class PythonSettings(BaseModel):
    """Python code of models. It has all permissions of the server's user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allow: tuple[str, ...] = Field(
        default=(),
        description="Models whose versions may bring Python: a model.py, or hooks in "
        "assets.extra/hooks.py; '*' for all. Versions of others that bring some are refused.",
    )
    hooks: Mapping[str, str] = Field(
        default_factory=dict,
        description="A file with hooks by model, in the place of what its versions bring; under "
        "'*' for all others.",
    )

    def allows(self, name: str) -> bool:
        """Return whether a model's versions may contain Python."""
        return name in self.allow or EVERY_MODEL in self.allow

    def hooks_of(self, name: str) -> str | None:
        """Return a model's hooks file; None for those of its versions."""
        return self.hooks.get(name, self.hooks.get(EVERY_MODEL))
