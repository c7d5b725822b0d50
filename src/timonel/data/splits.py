"""Divide records into splits: as the source assigns them, or by a hash.

In a division by fractions, a hash of the seed and the record's group gives the record a position in
[0, 1), and thresholds on the position give the split. The group is a fingerprint of the content, or
the key. So records that are added later never move the others, and identical records are together.
Label by label, the thresholds hold in expectation only; `Division` moves records where a split or
the training records of a label would be missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from timonel.data.schema import SPLITS, Split
from timonel.errors import DataError, SpecError

Fractions = tuple[float, float, float]

DEFAULT_FRACTIONS: Fractions = (0.8, 0.1, 0.1)
VALIDATION_FRACTIONS: Fractions = (0.9, 0.1, 0.0)
"""Division of a training split if the source assigns no validation split."""

FEW = 10
"""Fewer unassigned records than this go to train: too few to divide."""


def check_fractions(fractions: Sequence[float]) -> Fractions:
    """Validate the fractions of train, validation and test; missing ones are 0.

    Raises:
        SpecError: The fractions are not one to three numbers that add up to 1, or train gets none.
    """
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


@dataclass(frozen=True)
class Move:
    """Change of a division: move one group of records.

    Args:
        label: A label of the group; None for a group of any label.
        origin: Split that gives the group; None for the group with the lowest position.
        target: Split that receives it.
    """

    label: str | None
    origin: Split | None
    target: Split


@dataclass(frozen=True)
class Division:
    """Result of dividing by thresholds, as numbers of groups.

    Args:
        groups: Number of groups by label and split; one label of None for a regression.
        fractions: The fractions.
    """

    groups: Mapping[str | None, Mapping[Split, int]]
    fractions: Fractions

    def moves(self) -> list[Move]:
        """Return the next moves that are needed; none for a complete division.

        Training needs records of each label, and a split that was asked for must not be empty.

        Raises:
            DataError: There are too few records for the splits.
        """
        total = sum(map(self._in, SPLITS))
        asked = [s for s, part in zip(SPLITS, self.fractions, strict=True) if part > 0]
        if total < len(asked):
            raise DataError(
                f"too few records for {len(asked)} splits: {total}",
                hint="add records, or use one split with --splits 1",
            )
        lost = [label for label, counts in self.groups.items() if not counts.get("train")]
        if lost:
            return [Move(label, None, "train") for label in lost]
        return [self._fill(split) for split in asked if not self._in(split)][:1]

    def _fill(self, split: Split) -> Move:
        """Return the move that fills an empty split, from train if possible."""
        for origin in SPLITS:
            donor = max(self.groups, key=lambda label: self.groups[label].get(origin, 0))
            spare = self.groups[donor].get(origin, 0) if origin == "train" else self._in(origin)
            if spare > 1:
                return Move(donor, origin, split)
        raise DataError(
            f"{sum(map(self._in, SPLITS))} records are too few for a {split} split and one "
            "training record of each label",
            hint="add records, or use fewer splits with --splits",
        )

    def _in(self, split: Split) -> int:
        return sum(counts.get(split, 0) for counts in self.groups.values())
