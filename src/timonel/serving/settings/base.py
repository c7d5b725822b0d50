"""Base class of server settings, and readable validation errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from timonel.errors import SpecError

EVERY_MODEL = "*"
"""Key for all models in per-model settings."""


class SettingsModel(BaseModel):
    """Immutable settings that reject unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def as_spec_error(error: ValidationError) -> SpecError:
    """Return the first validation error as a user-facing `SpecError`."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # raised by a validator, with a readable message
        return SpecError(str(first["ctx"]["error"]))
    name, rule = ".".join(map(str, first["loc"])), first["msg"]
    if not rule.startswith("Input should be "):
        return SpecError(f"{name}: {rule}, got {first['input']!r}")
    return SpecError(
        f"{name} must be {rule.removeprefix('Input should be ')}, got {first['input']!r}"
    )
