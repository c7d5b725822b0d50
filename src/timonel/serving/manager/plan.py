"""Decide which versions to load and unload. Pure functions.

By default, new versions are loaded before old ones are unloaded (availability-preserving), and a
version that cannot be loaded never takes down one that serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from timonel.serving.settings.models import Aliased, Latest, Specific, VersionPolicy
from timonel.serving.status import Code, StatusError, without_folders


class VersionState(StrEnum):
    """State of a version, named as in TensorFlow Serving."""

    START = "START"
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    UNLOADING = "UNLOADING"
    END = "END"


@dataclass(frozen=True)
class Candidate:
    """A version on disk.

    Args:
        fingerprint: Changes whenever the folder's content does; empty if not needed.
        complete: Whether the version may be loaded, because it is no longer being written.
    """

    number: int
    path: str
    fingerprint: str = ""
    complete: bool = True


@dataclass(frozen=True)
class Tracked:
    """The server's record of a version.

    Args:
        fingerprint: The fingerprint of the content at the last attempt to load it.
        attempts: Attempts to load that content.
        retry_at: Time to retry the same content; None for never.
    """

    state: VersionState = VersionState.START
    fingerprint: str = ""
    attempts: int = 0
    error: StatusError | None = None
    retry_at: float | None = None

    @property
    def in_memory(self) -> bool:
        """Whether the version uses memory, or is about to."""
        return self.state in {VersionState.LOADING, VersionState.AVAILABLE, VersionState.UNLOADING}


@dataclass(frozen=True)
class VersionStatus:
    """Status of a version, as reported to clients."""

    number: int
    state: VersionState
    code: Code = Code.OK
    message: str = ""


@dataclass(frozen=True)
class VersionPlan:
    """Versions to load and unload now."""

    load: tuple[Candidate, ...] = ()
    unload: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rule:
    """Rules for choosing a model's versions.

    Args:
        keep: Further versions to keep, because labels or aliases name them.
        fall_back: Whether an older version replaces one that cannot be loaded.
    """

    policy: VersionPolicy = field(default_factory=Latest)
    unloads_first: bool = False
    keep: frozenset[int] = frozenset()
    fall_back: bool = True


@dataclass(frozen=True)
class Naming:
    """Names of a model's versions.

    Args:
        labels: Versions by label of the server's configuration.
        aliases: Versions by alias of the repository, as last read.
        served: The version that answers for each alias: the one before, until the new one can.
    """

    labels: Mapping[str, int] = field(default_factory=dict)
    aliases: Mapping[str, int] = field(default_factory=dict)
    served: Mapping[str, int] = field(default_factory=dict)

    def moved(self, aliases: Mapping[str, int], policy: VersionPolicy) -> Naming:
        """Return the names after a look; an alias that is served outlives its removal."""
        kept = {policy.alias} & self.aliases.keys() if isinstance(policy, Aliased) else set()
        return replace(self, aliases={alias: self.aliases[alias] for alias in kept} | {**aliases})

    def published(self, loaded: Iterable[int]) -> Naming:
        """Return the names once these versions are loaded."""
        there = set(loaded)
        served = {
            alias: number
            if number in there or self.served.get(alias) not in there
            # A version that is not loaded yet does not answer in place of one that is.
            else self.served[alias]
            for alias, number in self.aliases.items()
        }
        return replace(self, served=served)

    def rule(self, policy: VersionPolicy, *, unloads_first: bool, as_tfserving: bool) -> Rule:
        """Return the rules for choosing versions."""
        aliases = dict(self.aliases)
        if isinstance(policy, Aliased):
            aliases = {a: number for a, number in aliases.items() if a == policy.alias}
            policy = Specific(versions=tuple(aliases.values()))
        elif isinstance(policy, Specific) or as_tfserving:
            aliases = {}
        keep = set(aliases.values()) | (set() if as_tfserving else set(self.labels.values()))
        if not unloads_first:
            keep |= {self.served[alias] for alias in aliases if alias in self.served}
        return Rule(policy, unloads_first, frozenset(keep), fall_back=not as_tfserving)


def of_interest(
    rule: Rule, numbers: Iterable[int], tracked: Mapping[int, Tracked]
) -> tuple[int, ...]:
    """Return the versions whose folders to check, newest first.

    Versions older than those that serve are skipped, so that the cost of a poll does not grow with
    the number of versions.
    """
    there = set(numbers)
    if isinstance(rule.policy, Specific):
        return tuple(sorted(there & (set(rule.policy.versions) | rule.keep), reverse=True))
    chosen: list[int] = []
    serving = 0
    for number in sorted(there, reverse=True):
        enough = isinstance(rule.policy, Latest) and serving >= rule.policy.count
        if not enough or number in rule.keep:
            chosen.append(number)
            serving += _state(tracked, number) is VersionState.AVAILABLE
    return tuple(chosen)


def plan(
    rule: Rule,
    candidates: Sequence[Candidate],
    tracked: Mapping[int, Tracked],
    now: float,
) -> VersionPlan:
    """Return the versions to load and unload.

    A version that is still being written is skipped in favour of the next older one. So is one
    whose content failed to load, if the rule falls back: a server that starts with a broken newest
    version serves the one before it.

    Args:
        candidates: The versions `of_interest`, newest first.
        now: The present time on the clock of `Tracked.retry_at`.
    """
    aspired = _aspired(rule, candidates, tracked)
    due = [c for c in candidates if _retry_is_due(c, tracked.get(c.number), now)]
    chosen = {c.number: c for c in (*aspired, *due)}
    load = tuple(
        candidate
        for number, candidate in sorted(chosen.items(), reverse=True)
        if _may_begin(candidate, tracked.get(number), now)
    )
    if rule.unloads_first:
        return _one_at_a_time(load, aspired, candidates, tracked)
    return VersionPlan(load=load, unload=_superseded(aspired, candidates, tracked))


def after_failure(
    record: Tracked, error: StatusError, *, retries: int, retry_at: float, transient: bool
) -> Tracked:
    """Return the record of a version whose load has just failed."""
    again = transient and record.attempts <= retries
    return replace(
        record, state=VersionState.END, error=error, retry_at=retry_at if again else None
    )


def may_yet_serve(
    rule: Rule, candidates: Sequence[Candidate], tracked: Mapping[int, Tracked]
) -> bool:
    """Return whether a version may become available without a change on disk."""
    hopeful = candidates if rule.fall_back else _first(rule, candidates)
    return any(
        not candidate.complete
        or (record := tracked.get(candidate.number)) is None
        or record.in_memory
        or record.retry_at is not None
        or record.fingerprint != candidate.fingerprint
        for candidate in hopeful
    )


def statuses(
    tracked: Mapping[int, Tracked], *, retrying_is_loading: bool = False
) -> tuple[VersionStatus, ...]:
    """Return the statuses reported to clients, ascending by version."""
    return tuple(
        VersionStatus(number, VersionState.LOADING)
        if retrying_is_loading and record.retry_at is not None
        else VersionStatus(
            number,
            record.state,
            record.error.code if record.error else Code.OK,
            without_folders(record.error.message) if record.error else "",
        )
        for number, record in sorted(tracked.items())
    )


def _aspired(
    rule: Rule, candidates: Sequence[Candidate], tracked: Mapping[int, Tracked]
) -> list[Candidate]:
    usable = [
        c
        for c in candidates
        if _is_in_memory(tracked.get(c.number))
        or (c.complete and not (rule.fall_back and _has_failed(c, tracked.get(c.number))))
    ]
    return _first(rule, usable)


def _first(rule: Rule, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that the policy selects, assuming all can be loaded."""
    if not isinstance(rule.policy, Latest):
        return list(candidates)
    return [c for n, c in enumerate(candidates) if n < rule.policy.count or c.number in rule.keep]


def _has_failed(candidate: Candidate, record: Tracked | None) -> bool:
    return (
        record is not None
        and record.error is not None
        and record.fingerprint == candidate.fingerprint
    )


def _retry_is_due(candidate: Candidate, record: Tracked | None, now: float) -> bool:
    return (
        record is not None
        and _has_failed(candidate, record)
        and record.retry_at is not None
        and record.retry_at <= now
    )


def _may_begin(candidate: Candidate, record: Tracked | None, now: float) -> bool:
    if not candidate.complete or _is_in_memory(record):
        return False
    return not _has_failed(candidate, record) or _retry_is_due(candidate, record, now)


def _one_at_a_time(
    load: tuple[Candidate, ...],
    aspired: Sequence[Candidate],
    candidates: Sequence[Candidate],
    tracked: Mapping[int, Tracked],
) -> VersionPlan:
    """Unload unselected versions, and load only once they have left memory."""
    numbers = {c.number for c in aspired}
    fresh = tuple(c for c in load if c.number in numbers)
    present = any(_is_in_memory(tracked.get(number)) for number in numbers)
    others = sorted(n for n, record in tracked.items() if record.in_memory and n not in numbers)
    if others:
        # Unload nothing for candidates of which none can be loaded.
        replaceable = fresh or present or not candidates
        leaving = (n for n in others if _state(tracked, n) is VersionState.AVAILABLE)
        return VersionPlan(unload=tuple(leaving) if replaceable else ())
    # Retry a failed version only if nothing serves.
    return VersionPlan(load=fresh or (() if present else load[:1]))


def _superseded(
    aspired: Sequence[Candidate],
    candidates: Sequence[Candidate],
    tracked: Mapping[int, Tracked],
) -> tuple[int, ...]:
    numbers = {c.number for c in aspired}
    surplus = sorted(
        number
        for number, record in tracked.items()
        if record.state is VersionState.AVAILABLE and number not in numbers
    )
    replaced = any(_state(tracked, number) is VersionState.AVAILABLE for number in numbers)
    # If no candidate can be loaded, keep the serving versions; if the versions were removed, unload
    # them.
    return tuple(surplus) if replaced or not candidates else ()


def _is_in_memory(record: Tracked | None) -> bool:
    return record is not None and record.in_memory


def _state(tracked: Mapping[int, Tracked], number: int) -> VersionState:
    record = tracked.get(number)
    return record.state if record else VersionState.START
