"""Parse and format sizes, durations and counts: ``16GB``, ``64MiB``, ``2h``, ``90s``, ``2 rows``.

Pydantic models use the annotated types ``ByteSize`` and ``Seconds``, which accept a number or such
a string.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator

from timonel.errors import SpecError

_BYTES = {"": 1, "b": 1} | {
    letter + suffix: base**power
    for base, suffixes in ((1000, ("", "b")), (1024, ("i", "ib")))
    for power, letter in enumerate("kmgt", start=1)
    for suffix in suffixes
}
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# Python converts texts of at most 4300 digits to integers, and numbers below 1e309 to floats.
_MAX_LENGTH = 100
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*\Z")

# Unlike sizes of timonel, quantities of Kubernetes distinguish upper and lower case.
_KUBERNETES = (
    {suffix: Fraction(1000) ** power for power, suffix in enumerate("num", start=-3)}
    | {suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)}
    | {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
)
_KUBERNETES_QUANTITY = re.compile(
    r"\+?(\d+\.?\d*|\.\d+)(?:([eE][+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)


def parse_bytes(text: str | float) -> int:
    """Parse a size to a number of bytes.

    Args:
        text: A number of bytes, or a number with a decimal (kB, MB, ...) or binary (KiB, ...) unit.
    """
    return int(_parse(text, _BYTES, "a size such as 64MB or 1.5GiB"))


def parse_seconds(text: str | float) -> float:
    """Parse a duration to seconds: ``90``, ``90s``, ``1.5h``, ``2d``."""
    return float(_parse(text, _SECONDS, "a duration such as 90s, 5m or 2h"))


def parse_quantity(text: str) -> Fraction:
    """Parse a quantity of Kubernetes: ``2``, ``500m``, ``4Gi``, ``1e9``, ``128974848000m``."""
    match = _KUBERNETES_QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise SpecError(f"expected a quantity such as 500m or 4Gi, got {_shown(text)}")
    number, exponent, suffix = match.groups(default="")
    return Fraction(f"{number}{exponent}") * (_KUBERNETES[suffix] if suffix else 1)


def format_bytes(count: float) -> str:
    """Format bytes in the largest decimal unit that gives at least 1."""
    for unit in ("B", "kB", "MB", "GB"):
        # A value that rounds to 1000 of this unit is 1 of the next.
        if abs(count) < (999.5 if unit == "B" else 999.95):
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Format a duration: ``0.4s``, ``12s``, ``3m 05s``, ``2h 10m``, ``3d 4h``."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def counted(count: int, noun: str) -> str:
    """Return a count with a noun that takes an ``s``: ``1 row``, ``2,000 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names as text: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _parse(
    text: str | float, units: Mapping[str, int] | Mapping[str, float], expected: str
) -> int | float:
    if isinstance(text, int | float) and not isinstance(text, bool):
        if 0 <= text <= sys.float_info.max:
            return text
        raise SpecError(f"expected {expected}, got {_shown(text)}")
    match = None
    if isinstance(text, str) and len(text) <= _MAX_LENGTH:
        match = _QUANTITY.match(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in units:
        raise SpecError(f"expected {expected}, got {_shown(text)}")
    # Whole numbers stay exact, even beyond the precision of a float.
    number = match.group(1)
    return (int(number) if number.isdigit() else float(number)) * units[unit]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _as_value_error(parse: object) -> BeforeValidator:
    def validate(value: object) -> object:
        try:
            return parse(value)  # type: ignore[operator]
        except SpecError as error:
            # Pydantic collects the ValueErrors of all fields in one report.
            raise ValueError(str(error)) from error

    return BeforeValidator(validate)


ByteSize = Annotated[int, _as_value_error(parse_bytes)]
Seconds = Annotated[float, _as_value_error(parse_seconds)]
