"""Decide what a deletion removes and what it keeps. Pure functions.

An item that stays keeps what it was made from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

Key = tuple[str, str]
"""Noun and name, such as ``("model", "cats/7")``."""


@dataclass(frozen=True)
class Item:
    """Something that can be deleted.

    Args:
        created_at: Time in seconds since the epoch.
        group: Its group for `expired`, such as the versions of a model; None: it does not expire.
        pin: Why it stays unless forced.
    """

    key: Key
    created_at: float = 0.0
    group: str | None = None
    needs: frozenset[Key] = frozenset()
    parts: frozenset[Key] = frozenset()
    pin: str | None = None
    block: str | None = None

    @property
    def label(self) -> str:
        """Noun and name as text."""
        return " ".join(self.key)


@dataclass(frozen=True)
class DeletionPlan:
    """A deletion.

    Attributes:
        deleted: What goes.
        kept: Why each of the others that were chosen, or are parts of those, stays.
    """

    deleted: tuple[Key, ...]
    kept: Mapping[Key, str]


def plan(items: Mapping[Key, Item], chosen: Iterable[Key], *, force: bool = False) -> DeletionPlan:
    """Return what goes and what stays.

    Args:
        force: Delete also what others were made from, and what has an alias or is served.
    """
    named, kept = list(chosen), dict[Key, str]()
    while True:
        # What stays keeps its parts, too.
        going = _with_parts(items, named, kept)
        found = _reasons(items, going, force=force)
        if found == kept:
            return DeletionPlan(tuple(key for key in going if key not in kept), kept)
        kept = found


def _reasons(items: Mapping[Key, Item], going: Collection[Key], *, force: bool) -> dict[Key, str]:
    """Return why some of what is to go stays."""
    kept: dict[Key, str] = {}
    for key in going:
        reason = items[key].block or (None if force else items[key].pin)
        if reason is not None:
            kept[key] = reason
    waiting = [] if force else [key for key in items if key not in going or key in kept]
    while waiting:
        stays = items[waiting.pop()]
        for key in sorted(stays.needs):
            if key in going and key not in kept:
                kept[key] = f"{stays.label} was made from it"
                waiting.append(key)
    return kept


def expired(
    items: Mapping[Key, Item], now: float, *, older_than_s: float, keep_last: int
) -> list[Key]:
    """Return what is old, apart from the newest of each group.

    Args:
        now: The present time in seconds since the epoch.
        older_than_s: Age from which something is old.
        keep_last: How many of each group stay, whatever their age.
    """
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in items.values():
        if item.group is not None:
            groups[item.group].append(item)
    found = []
    for members in groups.values():
        newest_first = sorted(members, key=lambda item: (-item.created_at, item.key))
        found += [each for each in newest_first[keep_last:] if now - each.created_at > older_than_s]
    return sorted(item.key for item in found)


def _with_parts(
    items: Mapping[Key, Item], chosen: Sequence[Key], kept: Collection[Key]
) -> Collection[Key]:
    """Return the chosen keys, and those of the parts of what is not kept, in order."""
    found: dict[Key, None] = {}
    waiting = [*reversed(chosen)]
    while waiting:
        key = waiting.pop()
        if key in items and key not in found:
            found[key] = None
            waiting += sorted(items[key].parts if key not in kept else (), reverse=True)
    return found
