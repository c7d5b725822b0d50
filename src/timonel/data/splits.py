"""Divide records into splits: as the source assigns them, or by fractions.

In a division by fractions, a record's split and its position there come from a hash of its key and
the seed. They do not depend on the order in which records were found, the machine, or a library's
random numbers.

Identical records in several splits leak held-out data. A division by fractions keeps duplicates in
one split. Where the source assigns the splits, its held-out records stay and their copies in
earlier splits are left out.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from timonel.data.manifest import Duplicate
from timonel.data.schema import SPLITS, Split
from timonel.data.sources import Entry
from timonel.errors import DataError, SpecError

DEFAULT_FRACTIONS = (0.8, 0.1, 0.1)
_FEW = 10
"""Fewer unassigned records than this go to train: too few to divide."""


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
    strata: Mapping[Hashable, Sequence[Entry]],
    fractions: tuple[float, float, float],
    seed: int,
    followers: Mapping[str, Sequence[Entry]] | None = None,
) -> dict[Split, list[Entry]]:
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
    needed = sum(fraction > 0 for fraction in fractions)
    total = sum(len(records) for records in strata.values())
    if total < needed:
        raise DataError(
            f"too few records for {needed} splits: {total}",
            hint="add records, or use one split with --splits 1",
        )
    sizes = _fill_empty(_sizes([len(records) for records in strata.values()], fractions), fractions)
    result: dict[Split, list[Entry]] = {split: [] for split in SPLITS}
    for records, counts in zip(strata.values(), sizes, strict=True):
        ranked = sorted(records, key=lambda record: (_rank(record.key, seed), record.key))
        start = 0
        for split, count in zip(SPLITS, counts, strict=True):
            result[split].extend(ranked[start : start + count])
            start += count
    for records in result.values():
        records.extend([each for one in records for each in (followers or {}).get(one.key, ())])
    return {split: shuffled(records, seed) for split, records in result.items()}


def shuffled(records: Sequence[Entry], seed: int) -> list[Entry]:
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
                    f"{sum(map(sum, sizes))} records are too few for a {SPLITS[index]} split and "
                    "one training record of each label",
                    hint="add records, or use fewer splits with --splits",
                )
            donor[0] -= 1
            donor[index] += 1
    return sizes


def _rank(key: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=16).digest()


@dataclass(frozen=True)
class SplitAssignment:
    """Records of each split.

    Args:
        splits: The records of each split, in order.
        fractions: The requested fractions, or the actual ones if the source assigned the splits.
        given: The splits that the source assigned.
        left_out: Copies of held-out records: key and reason.
    """

    splits: Mapping[Split, Sequence[Entry]]
    fractions: tuple[float, float, float]
    given: tuple[Split, ...] = ()
    left_out: Sequence[tuple[str, str]] = field(default_factory=list)


def assign(
    entries: Sequence[Entry],
    labels: Sequence[str],
    fractions: tuple[float, float, float] | None,
    seed: int,
) -> SplitAssignment:
    """Assign each record to a split.

    Args:
        entries: All records.
        labels: The classes, for stratified division; empty for a regression.
        fractions: Fractions of the splits; None to use the splits of the source, if it has any.
        seed: Seed of division and order.

    Raises:
        DataError: The source assigns no records to train, or a label only to other splits.
    """
    if fractions is not None or not any(entry.split for entry in entries):
        shares = fractions or DEFAULT_FRACTIONS
        return SplitAssignment(_divide_entries(entries, labels, shares, seed), shares)
    kept, left_out = _without_copies(entries)
    splits: dict[Split, list[Entry]] = {
        split: [entry for entry in kept if entry.split == split] for split in SPLITS
    }
    given = tuple(split for split in SPLITS if splits[split])
    free = [entry for entry in kept if entry.split is None]
    if len(free) < _FEW:
        splits["train"].extend(free)
    else:
        for split, records in _divide_entries(free, labels, DEFAULT_FRACTIONS, seed).items():
            splits[split].extend(records)
    _check(splits, labels)
    if not splits["validation"]:
        # Training needs a validation split; the test split stays as the source has it.
        divided = _divide_entries(splits["train"], labels, (0.9, 0.1, 0.0), seed)
        splits["train"], splits["validation"] = divided["train"], divided["validation"]
    train, validation, test = (len(splits[split]) / len(kept) for split in SPLITS)
    ordered = {split: shuffled(records, seed) for split, records in splits.items()}
    return SplitAssignment(ordered, (train, validation, test), given=given, left_out=left_out)


def find_duplicates(entries: Sequence[Entry]) -> list[Duplicate]:
    """Return groups of identical records, those with conflicting labels first."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.group is not None:
            groups[entry.group].append(entry)
    found = [
        Duplicate(
            digest=digest,
            keys=tuple(entry.key for entry in group),
            labels=tuple(sorted({str(entry.label) for entry in group})),
        )
        for digest, group in groups.items()
    ]
    return sorted(found, key=lambda group: (len(group.labels) < 2, group.keys))


def _divide_entries(
    entries: Sequence[Entry],
    labels: Sequence[str],
    fractions: tuple[float, float, float],
    seed: int,
) -> dict[Split, list[Entry]]:
    leaders: dict[str, str] = {}
    followers: dict[str, list[Entry]] = defaultdict(list)
    strata: dict[Hashable, list[Entry]] = {label: [] for label in labels or [""]}
    for entry in entries:
        leader = leaders.setdefault(entry.group, entry.key) if entry.group else entry.key
        if leader == entry.key:
            strata[str(entry.label) if labels else ""].append(entry)
        else:
            followers[leader].append(entry)
    return divide(strata, fractions, seed, followers)


def _without_copies(entries: Sequence[Entry]) -> tuple[list[Entry], list[tuple[str, str]]]:
    """Leave out records that have an identical copy in a later split."""
    rank = {split: index for index, split in enumerate(SPLITS)}
    held: dict[str, Entry] = {}
    for entry in entries:
        if entry.group is not None and entry.split is not None:
            best = held.setdefault(entry.group, entry)
            if best.split is not None and rank[entry.split] > rank[best.split]:
                held[entry.group] = entry
    kept, left_out = [], []
    for entry in entries:
        best = held.get(entry.group or "", entry)
        if best.split == entry.split:
            kept.append(entry)
        else:
            left_out.append((entry.key, f"identical to {best.key} of the {best.split} split"))
    return kept, left_out


def _check(splits: Mapping[Split, Sequence[Entry]], labels: Sequence[str]) -> None:
    if not splits["train"]:
        raise DataError(
            "the source assigns no records to the training split",
            hint="assign some to train, or use --splits 0.8,0.1,0.1",
        )
    if labels:
        known = {str(entry.label) for entry in splits["train"]}
        for split in SPLITS:
            for entry in splits[split]:
                if str(entry.label) not in known:
                    raise DataError(
                        f"label {str(entry.label)!r} of {entry.key} is in the {split} split only, "
                        "not in train",
                        hint="use the same label names in all splits, or use --splits 0.8,0.1,0.1",
                    )
