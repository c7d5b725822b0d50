"""Convert pydantic's validation errors."""

from __future__ import annotations

from pydantic import ValidationError

from timonel.errors import SpecError


def as_spec_error(error: ValidationError) -> SpecError:
    """Return the first validation error as a user-facing `SpecError`."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # raised by a validator, with a readable message
        return SpecError(str(first["ctx"]["error"]))
    name = ".".join(map(str, first["loc"]))
    rule = first["msg"].removeprefix("Input should be ")
    return SpecError(f"expected {name} to be {rule}, got {first['input']!r}")
