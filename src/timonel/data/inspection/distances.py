"""Distances of distributions, and how large they are by chance in samples of these sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import chdtri, ndtri  # type: ignore[import-untyped]

from timonel.data.inspection.distributions import Counts, Floats, Numbers, Words

Measure = Literal["L-infinity", "Jensen-Shannon", "missing"]
_MAX_BINS = 20
_PER_BIN = 10
"""Fewest values per bin, on average, of the smaller sample."""


@dataclass(frozen=True)
class Difference:
    """Distance of two distributions, from 0 to 1, and the largest difference in words.

    Two samples of one distribution exceed the noise with a given probability.
    """

    measure: Measure
    distance: float
    noise: float
    text: str


def difference_of_words(one: Words, other: Words, chance: float) -> Difference | None:
    """Return the largest difference of a word's share (L-infinity).

    None without values, or if there are too many words. ``chance`` is the probability that two
    samples of one distribution exceed the noise.
    """
    parts = [part.counts for part in (one, other) if part.counts]
    if len(parts) < 2:
        return None
    words = sorted({*parts[0], *parts[1]})
    counts = np.array([[part[word] for word in words] for part in parts])
    shares, noise = _shares_and_noise(counts, np.array([one.count, other.count]), chance)
    gaps = np.abs(shares[0] - shares[1])
    worst = int(np.argmax(gaps))
    text = f"{words[worst]!r} {shares[0, worst]:.1%}, then {shares[1, worst]:.1%}"
    return Difference("L-infinity", float(gaps[worst]), float(noise[worst]), text)


def difference_of_numbers(one: Numbers, other: Numbers, chance: float) -> Difference | None:
    """Return the Jensen-Shannon divergence to base 2, over bins with equal shares of both samples.

    None without values. ``chance`` is the probability that two samples of one distribution exceed
    the noise.
    """
    totals = np.array([one.count, other.count])
    if not totals.all():
        return None
    # An even number, so that a bin ends where distributions without overlap are divided.
    pairs = min(_MAX_BINS, int(totals.min()) // _PER_BIN) // 2
    counts = _binned(one, other, 2 * max(1, pairs))
    divergence = _jensen_shannon(counts / totals[:, None])
    freedom = counts.shape[1] - 1
    # With equal distributions, 8 ln(2) / (1/n + 1/m) times the divergence is about chi-squared.
    quantile = float(chdtri(freedom, chance)) if freedom else 0.0
    noise = quantile * float((1 / totals).sum()) / (8 * math.log(2))
    means = [part.show(part.moments.mean) for part in (one, other)]
    return Difference("Jensen-Shannon", divergence, noise, f"mean {means[0]}, then {means[1]}")


def difference_of_missing(
    one: Numbers | Words, other: Numbers | Words, chance: float
) -> Difference | None:
    """Return the difference of the shares of missing values; None without records."""
    missing = np.array([[one.missing], [other.missing]])
    totals = np.array([one.count + one.missing, other.count + other.missing])
    if not totals.all() or not missing.any():
        return None
    shares, noise = _shares_and_noise(missing, totals, chance)
    first, second = float(shares[0, 0]), float(shares[1, 0])
    text = f"{first:.1%} missing, then {second:.1%}"
    return Difference("missing", abs(first - second), float(noise[0]), text)


def _shares_and_noise(counts: Counts, totals: Counts, chance: float) -> tuple[Floats, Floats]:
    """Return shares [2, K] of counts [2, K], and the noise of each difference [K]."""
    shares = counts / totals[:, None]
    # Laplace's estimate: words that do not occur in small samples are possible, too.
    pooled = (counts.sum(0) + 1) / (totals.sum() + 2)
    deviation = np.sqrt(pooled * (1 - pooled) * (1 / totals).sum())
    correction = (1 / totals).sum() / 2
    return shares, ndtri(1 - chance / (2 * counts.shape[1])) * deviation + correction


def _binned(one: Numbers, other: Numbers, bins: int) -> Counts:
    """Return counts [2, bins] in bins that have nearly equal shares of both samples together."""
    bits = min(one.bits, other.bits)
    cells = [part.cells(bits) for part in (one, other)]
    values = np.union1d(cells[0][0], cells[1][0])
    counts = np.zeros((2, len(values)), np.int64)
    for row, (found, number_of) in zip(counts, cells, strict=True):
        row[np.searchsorted(values, found)] = number_of
    # Both samples weigh the same, however large they are.
    shares = (counts / counts.sum(1, keepdims=True)).mean(0)
    places = ((np.cumsum(shares) - shares / 2) * bins).astype(np.int64)
    used, places = np.unique(places, return_inverse=True)
    result = np.zeros((2, len(used)), np.int64)
    for row, part in zip(result, counts, strict=True):
        np.add.at(row, places, part)
    return result


def _jensen_shannon(shares: Floats) -> float:
    """Return the divergence of two distributions [2, K] to base 2."""
    middle = shares.mean(0)
    ratios = np.divide(shares, middle, out=np.ones_like(shares), where=shares > 0)
    return max(0.0, float((shares * np.log2(ratios)).sum() / 2))
