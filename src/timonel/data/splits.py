"""Divide records into splits by keys, labels, fractions and seed.

A record's split and its position there come from a hash of its key and the seed. They do not
depend on the order in which records were found, the machine, or a library's random numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol, TypeVar

from timonel.data.schema import SPLITS, Split
from timonel.errors import DataError, SpecError


class Keyed(Protocol):
    """Object with a key."""

    @property
    def key(self) -> str:
        """Key, unique among all records."""


K = TypeVar("K", bound=Keyed)


def check_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
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


def divide(
    strata: Mapping[Hashable, Sequence[K]],
    fractions: tuple[float, float, float],
    seed: int,
    followers: Mapping[str, Sequence[K]] | None = None,
) -> dict[Split, list[K]]:
    """Divide records into stratified splits, each in shuffled order.

    Rounding errors are carried from label to label, so that split sizes match the fractions even
    if every label has only a few records. The training split contains every label.

    Args:
        strata: Records by label.
        fractions: Fractions of train, validation and test.
        seed: Seed of the division.
        followers: Records outside the strata, by the key of the record whose split they join.

    Raises:
        DataError: There are too few records for the requested splits.
    """
    wanted = [split for split, fraction in zip(SPLITS, fractions, strict=True) if fraction > 0]
    total = sum(len(records) for records in strata.values())
    if total < len(wanted):
        raise DataError(
            f"expected at least {len(wanted)} records for {len(wanted)} splits, got {total}",
            hint="add records, or give fewer splits with --splits 1",
        )
    sizes = _fill_empty(_sizes([len(records) for records in strata.values()], fractions), fractions)
    result: dict[Split, list[K]] = {split: [] for split in SPLITS}
    for records, counts in zip(strata.values(), sizes, strict=True):
        ranked = sorted(((_rank(record.key, seed), record) for record in records), key=_by_rank)
        start = 0
        for split, count in zip(SPLITS, counts, strict=True):
            result[split].extend(record for _, record in ranked[start : start + count])
            start += count
    for records in result.values():
        records.extend([each for one in records for each in (followers or {}).get(one.key, ())])
    return {split: shuffled(records, seed) for split, records in result.items()}


def shuffled(records: Sequence[K], seed: int) -> list[K]:
    """Return records in the order of a split.

    Sorts by the second half of the rank, so that the order is independent of the division.
    """
    return sorted(records, key=lambda record: (_rank(record.key, seed)[8:], record.key))


def _sizes(totals: Sequence[int], fractions: Sequence[float]) -> list[list[int]]:
    carry = [0.0] * len(fractions)
    sizes = []
    for total in totals:
        quotas = [total * part + rest for part, rest in zip(fractions, carry, strict=True)]
        counts = _largest_remainder(total, quotas)
        carry = [quota - count for quota, count in zip(quotas, counts, strict=True)]
        sizes.append(counts)
    return sizes


def _largest_remainder(total: int, quotas: Sequence[float]) -> list[int]:
    counts = [max(0, math.floor(quota + 1e-9)) for quota in quotas]
    if total and counts[0] == 0:
        counts[0] = 1
    while sum(counts) != total:
        over = sum(counts) > total
        # A carry may have raised the sum of the floors above the total: reduce the count that
        # exceeds its quota most.
        candidates = [i for i, n in enumerate(counts) if not over or n > (1 if i == 0 else 0)]
        gaps = {i: quotas[i] - counts[i] for i in candidates}
        chosen = (
            min(gaps, key=lambda i: (gaps[i], -i))
            if over
            else max(gaps, key=lambda i: (gaps[i], -i))
        )
        counts[chosen] += -1 if over else 1
    return counts


def _fill_empty(sizes: list[list[int]], fractions: Sequence[float]) -> list[list[int]]:
    """Fill empty requested splits from the label with most training records."""
    for index, fraction in enumerate(fractions):
        if fraction > 0 and not any(counts[index] for counts in sizes):
            donor = max(sizes, key=lambda counts: counts[0])
            if donor[0] < 2:
                raise DataError(
                    f"expected enough records for a {SPLITS[index]} split beside one of each "
                    f"label for training, got {sum(map(sum, sizes))} records",
                    hint="add records, or give fewer splits with --splits",
                )
            donor[0] -= 1
            donor[index] += 1
    return sizes


def _rank(key: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=16).digest()


def _by_rank(pair: tuple[bytes, Keyed]) -> tuple[bytes, str]:
    return pair[0], pair[1].key
