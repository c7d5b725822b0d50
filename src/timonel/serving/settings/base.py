"""Base class of server settings, and readable validation errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from timonel.errors import SpecError
from timonel.storage.uris import local_path
from timonel.units import ByteSize

EVERY_MODEL = "*"
"""Key for all models in per-model settings."""
AbsolutePath = Annotated[str, BeforeValidator(lambda path: str(local_path(path)))]
"""A file or folder of this machine: servers may run in another folder than their users."""


def _limit(value: Any) -> Any:
    return None if value == "none" else value


SizeLimit = Annotated[ByteSize | None, BeforeValidator(_limit)]
"""A size in bytes such as ``64MiB``; None, or ``none``, for no limit."""


class SettingsModel(BaseModel):
    """Immutable settings that reject unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def as_spec_error(error: ValidationError, names: Mapping[str, str]) -> SpecError:
    """Return the first validation error for users, who call settings by ``names``."""
    first = error.errors()[0]
    place, rule = ".".join(map(str, first["loc"])), first["msg"]
    # Of a union, the place ends with the name of its member.
    name = names.get(place) or names.get(place.rpartition(".")[0])
    if first["type"] == "value_error":  # raised by a validator, with a readable message
        return SpecError(f"{name}: {first['ctx']['error']}" if name else str(first["ctx"]["error"]))
    name = name or place
    if not rule.startswith("Input should be "):
        return SpecError(f"{name}: {rule}, got {first['input']!r}")
    return SpecError(
        f"{name} must be {rule.removeprefix('Input should be ')}, got {first['input']!r}"
    )
