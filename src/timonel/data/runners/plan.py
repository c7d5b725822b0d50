"""Write requests to runners, and their results."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from timonel.data.manifest import Shard
from timonel.data.schema import SPLITS, Split
from timonel.data.sources.base import Entry
from timonel.errors import SpecError


@dataclass(frozen=True)
class ShardPlan:
    """File name and records of one shard to write, in order."""

    name: str
    split: Split
    entries: Sequence[Entry]


@dataclass(frozen=True)
class Plan:
    """All shards to write.

    Args:
        shards: The shards, in the order of writing.
        label_numbers: Number of each class; empty for a regression, whose labels are numbers.
        skip_bad: Skip unusable records instead of failing.
    """

    shards: Sequence[ShardPlan]
    label_numbers: Mapping[str, int]
    skip_bad: bool = False

    @property
    def records(self) -> int:
        """Number of records of all shards."""
        return sum(len(shard.entries) for shard in self.shards)


@dataclass
class Outcome:
    """Result of writing a plan.

    Args:
        shards: The written files, in the order of the plan.
        facts: The source's facts about each record, by key.
        written: Written records by split, in order.
        skipped: Unusable records: key and reason.
    """

    shards: list[Shard] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    written: dict[Split, list[Entry]] = field(default_factory=lambda: {s: [] for s in SPLITS})
    skipped: list[tuple[str, str]] = field(default_factory=list)


def plan_shards(
    splits: Mapping[Split, Sequence[Entry]], *, shard_bytes: int, shards: int | None = None
) -> list[ShardPlan]:
    """Cut each split into shards with nearly equal numbers of records.

    Args:
        splits: Records of each split, in order.
        shard_bytes: Approximate maximum size of a shard.
        shards: Number of shards of the training split, instead of ``shard_bytes``; other splits
            get shards of about the same number of records.

    Raises:
        SpecError: ``shard_bytes`` or ``shards`` is not positive.
    """
    for number, what in ((shards, "shards"), (shard_bytes, "bytes per shard")):
        if number is not None and number < 1:
            raise SpecError(f"expected a positive number of {what}, got {number}")
    result: list[ShardPlan] = []
    for split, entries in splits.items():
        if not entries:
            continue
        if shards is None:
            total = -(-sum(entry.size for entry in entries) // shard_bytes)
        else:
            total = round(shards * len(entries) / len(splits["train"]))
        total = max(1, min(total, len(entries)))
        cuts = [len(entries) * index // total for index in range(total + 1)]
        result.extend(
            ShardPlan(f"{split}-{index:05d}-of-{total:05d}.tfrecord", split, entries[start:end])
            for index, (start, end) in enumerate(itertools.pairwise(cuts))
        )
    return result
