"""What computes a version, if not TensorFlow as it is: a pure function of what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from timonel.serving.runtimes.base import Array
from timonel.serving.runtimes.evidence import Choice, Measurement

TOLERANCE = 1e-4
"""How far an answer may be from TensorFlow's, relative to the largest number in the same row."""
_GAIN = 1.05
"""A gain of less than a twentieth is within what measurements differ by."""
_NAMES: Mapping[Choice, str] = {"litert": "LiteRT", "frozen": "TensorFlow without variables"}


def difference(ours: Array, theirs: Array) -> float:
    """Return how far an output is from TensorFlow's, relative to the scale of its rows.

    What is no floating-point number has to be equal. Infinity stands for what is not comparable.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    if ours.size == 0:
        return 0.0
    if ours.dtype == object or not np.issubdtype(ours.dtype, np.inexact):
        return 0.0 if bool(np.array_equal(ours, theirs)) else float("inf")
    if bool((np.isnan(ours) != np.isnan(theirs)).any()):
        return float("inf")
    ours, theirs = (_rows(np.where(np.isnan(each), 0, each)) for each in (ours, theirs))
    same = ours == theirs
    finite = np.where(np.isfinite(theirs), np.abs(theirs), 0)
    scale = np.maximum(finite.max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    with np.errstate(invalid="ignore", over="ignore"):
        away = np.where(same, 0.0, np.abs(ours - theirs) / scale)
    return float(away.max())


def decide(
    differences: Mapping[Choice, Sequence[float]],
    impossible: Mapping[Choice, str],
    measurements: Sequence[Measurement],
) -> tuple[Choice, str]:
    """Return what computes the version, and why.

    Args:
        differences: How far answers were from TensorFlow's, of each other way to compute.
        impossible: Why there is no such way.
        measurements: For the same signatures, sizes and numbers of callers in each way.
    """
    reasons = {way: _against(way, differences.get(way, ()), measurements) for way in _NAMES}
    reasons |= impossible
    open_ways = [way for way in _NAMES if reasons[way] is None]
    best = max(open_ways, key=lambda way: _mean(_ratios(way, measurements)), default=None)
    if best is None:
        told = dict.fromkeys(str(reasons[way]) for way in _NAMES)
        return "tensorflow", "; ".join(told)
    ratios = _ratios(best, measurements)
    gain = f"{_NAMES[best]} is {min(ratios):.1f} to {max(ratios):.1f} times as fast"
    others = [str(why) for way, why in reasons.items() if why is not None and way == "litert"]
    return best, "; ".join((gain, *others))


def _against(
    way: Choice, differences: Sequence[float], measurements: Sequence[Measurement]
) -> str | None:
    worst = max(differences, default=None)
    if worst is None:
        return "there are no answers to compare"
    if not worst <= TOLERANCE:
        return f"answers of {_NAMES[way]} differ by {worst:.1e} (at most {TOLERANCE:g})"
    ratios = _ratios(way, measurements)
    if not ratios:
        return "nothing was measured"
    if min(ratios) < _GAIN:
        return f"{_NAMES[way]} is {min(ratios):.2f} to {max(ratios):.2f} times as fast"
    return None


def _ratios(way: Choice, measurements: Sequence[Measurement]) -> list[float]:
    """Return TensorFlow's time over that of another way, for all that was measured."""
    times: dict[Choice, dict[tuple[str, int, int], float]] = {"tensorflow": {}, way: {}}
    for each in measurements:
        what = (each.signature, each.batch, each.callers)
        times.setdefault(each.runtime, {})[what] = each.milliseconds
    ours = times[way]
    return [theirs / ours[what] for what, theirs in times["tensorflow"].items() if what in ours]


def _mean(ratios: Sequence[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios))


def _rows(array: Array) -> Array:
    """Return an array as rows of numbers that have room for differences."""
    is_complex = np.issubdtype(array.dtype, np.complexfloating)
    wide: Array = array.astype(np.complex128 if is_complex else np.float64)
    return wide.reshape(array.shape[0] if array.ndim > 1 else 1, -1)
