"""Floats as TensorFlow Serving writes them in JSON. Pure.

Six digits where they give the same value back, else 9 for a float32 and 17 for a float64; whole
numbers get ``.0`` unless they have an exponent; NaN, Infinity and -Infinity are bare tokens.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from timonel.serving.runtimes.base import Array

_EXACT_POWER = 22
"""The largest power of ten that a float64 holds exactly."""
_LARGEST_PLAIN = 21
_SMALLEST_PLAIN = -6


def decimal_texts(array: Array) -> list[str]:
    """Return the text of every element of a float32 or float64 array, in row-major order."""
    flat = array.reshape(-1)
    if not flat.size:
        return []
    values = flat.astype(np.float64)
    digits = 9 if flat.dtype == np.float32 else 17
    six = _is_short(flat, values)
    whole = (values == np.trunc(values)) & (np.abs(values) < np.where(six, 1e6, 10.0**digits))
    formats = np.where(whole, "%.1f", np.where(six, "%g", f"%.{digits}g"))
    finite = np.isfinite(values)
    if finite.all():
        return (" ".join(formats.tolist()) % tuple(values.tolist())).split(" ")
    return [
        form % value if known else _token(value)
        for form, value, known in zip(
            formats.tolist(), values.tolist(), finite.tolist(), strict=True
        )
    ]


def decimal_text(value: float) -> str:
    """Return the text of a number that was read from JSON, of float32 if it is in its range."""
    limit = float(np.finfo(np.float32).max)
    dtype = np.float32 if -limit <= value <= limit else np.float64
    return decimal_texts(np.array([value], dtype=dtype))[0]


def shortest_text(value: float) -> str:
    """Return the fewest digits that give a float64 back, laid out as RapidJSON does."""
    if not np.isfinite(value):
        return _token(value)
    if value == 0:
        return "-0.0" if np.signbit(value) else "0.0"
    sign, digit_tuple, _ = parts = Decimal(repr(value)).normalize().as_tuple()
    digits = "".join(map(str, digit_tuple))
    exponent = int(parts.exponent)
    return ("-" if sign else "") + _laid_out(digits, len(digits) + exponent)


def _laid_out(digits: str, point: int) -> str:
    """Return ``0.digits`` times ten to the ``point``."""
    if len(digits) <= point <= _LARGEST_PLAIN:
        return digits.ljust(point, "0") + ".0"
    if 0 < point <= _LARGEST_PLAIN:
        return f"{digits[:point]}.{digits[point:]}"
    if _SMALLEST_PLAIN < point <= 0:
        return "0." + "0" * -point + digits
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1}"


def _is_short(flat: Array, values: Array) -> Array:
    """Tell for each value whether six digits give it back."""
    with np.errstate(all="ignore"):
        power = 5 - np.floor(np.log10(np.abs(values)))
        scale = 10.0 ** np.abs(power)
        # A whole number of at most seven digits by an exact power of ten is rounded once, as a
        # parser of the same digits would.
        near = np.where(
            power >= 0, np.rint(values * scale) / scale, np.rint(values / scale) * scale
        )
        short: Array = (near.astype(flat.dtype) == flat) | (values == 0)
        unsure = np.flatnonzero(np.isfinite(values) & (np.abs(power) > _EXACT_POWER))
    for index in unsure.tolist():
        text = f"{values[index]:g}"
        short[index] = flat.dtype.type(float(text)) == flat[index]
    return short


def _token(value: float) -> str:
    if np.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
