"""Divide records into splits: as the source assigns them, or by a hash.

In a division by fractions, a hash of the seed and the record's group gives the record a position in
[0, 1), and thresholds on the position give the split. The group is a fingerprint of the content, or
the key. So records that are added later never move the others, and identical records are together.
Label by label, the thresholds hold in expectation only; `timonel.data.assignment` moves records
where a split or the training records of a label would be missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from timonel.errors import SpecError

Fractions = tuple[float, float, float]

DEFAULT_FRACTIONS: Fractions = (0.8, 0.1, 0.1)
VALIDATION_FRACTIONS: Fractions = (0.9, 0.1, 0.0)
"""Division of a training split if the source assigns no validation split."""

FEW = 10
"""Fewer unassigned records than this go to train: too few to divide."""


def check_fractions(fractions: Sequence[float]) -> Fractions:
    """Validate the fractions of train, validation and test; missing ones are 0."""
    values = [float(fraction) for fraction in fractions]
    valid = 1 <= len(values) <= 3 and all(0 <= value <= 1 for value in values)
    if not valid or abs(sum(values) - 1) > 1e-6 or values[0] <= 0:
        raise SpecError(
            f"expected fractions for train, validation and test that add up to 1, got {values}",
            hint="for example 0.8,0.1,0.1",
        )
    train, validation, test = (*values, 0.0, 0.0)[:3]
    return train, validation, test


def position(group: str, seed: int) -> float:
    """Return the position in [0, 1) of a group of records in the division."""
    digest = hashlib.blake2b(f"{seed}:{group}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8]) / (1 << 64)


def rank(key: str, seed: int) -> bytes:
    """Return the sort key of a record within its split, independent of its position."""
    return hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=16).digest()[8:]


def thresholds(fractions: Fractions) -> tuple[float, float]:
    """Return the positions at which validation and test start.

    Splits without records at the end start at 2, which no position reaches.
    """
    train, validation, test = fractions
    if not test:
        return (train if validation else 2.0), 2.0
    return train, train + validation
