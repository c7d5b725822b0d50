"""Which models may run Python of their own, and which is put around them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

EVERY_MODEL = "*"


class PythonSettings(BaseModel):
    """Python that belongs to models. It can do whatever the server's user can."""

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
        """Tell whether the versions of a model may bring Python."""
        return name in self.allow or EVERY_MODEL in self.allow

    def hooks_of(self, name: str) -> str | None:
        """Return the file with a model's hooks; none if it has only what its versions bring."""
        return self.hooks.get(name, self.hooks.get(EVERY_MODEL))
