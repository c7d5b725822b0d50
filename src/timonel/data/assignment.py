"""Assign records to splits: as the source does, or by fractions.

Identical records in several splits leak held-out data. A division by fractions keeps duplicates in
one split. Where the source assigns the splits, its held-out records stay and their copies in
earlier splits are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from timonel.data.manifest import Duplicate
from timonel.data.schema import SPLITS, Split
from timonel.data.sources import Entry
from timonel.data.splits import divide, shuffled
from timonel.errors import DataError

DEFAULT_FRACTIONS = (0.8, 0.1, 0.1)
_FEW = 10
"""Fewer unassigned records than this go to train: too few to divide."""


@dataclass(frozen=True)
class Assignment:
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
) -> Assignment:
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
        return Assignment(_divide(entries, labels, shares, seed), shares)
    kept, left_out = _without_copies(entries)
    splits: dict[Split, list[Entry]] = {
        split: [entry for entry in kept if entry.split == split] for split in SPLITS
    }
    given = tuple(split for split in SPLITS if splits[split])
    free = [entry for entry in kept if entry.split is None]
    if len(free) < _FEW:
        splits["train"].extend(free)
    else:
        for split, records in _divide(free, labels, DEFAULT_FRACTIONS, seed).items():
            splits[split].extend(records)
    _check(splits, labels)
    if not splits["validation"]:
        # Training needs a validation split; the test split stays as the source has it.
        divided = _divide(splits["train"], labels, (0.9, 0.1, 0.0), seed)
        splits["train"], splits["validation"] = divided["train"], divided["validation"]
    train, validation, test = (len(splits[split]) / len(kept) for split in SPLITS)
    ordered = {split: shuffled(records, seed) for split, records in splits.items()}
    return Assignment(ordered, (train, validation, test), given=given, left_out=left_out)


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


def _divide(
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
            hint="name them train, or divide anew with --splits 0.8,0.1,0.1",
        )
    if labels:
        known = {str(entry.label) for entry in splits["train"]}
        for split in SPLITS:
            for entry in splits[split]:
                if str(entry.label) not in known:
                    raise DataError(
                        f"label {str(entry.label)!r} of {entry.key} is in the {split} split only, "
                        "not in train",
                        hint="name labels equally in all splits, "
                        "or divide anew with --splits 0.8,0.1,0.1",
                    )
