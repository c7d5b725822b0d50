"""State of a model in the manager's thread. Not thread-safe."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from timonel.serving.manager.buckets.listing import BucketError
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.manager.plan import (
    Candidate,
    Naming,
    Rule,
    Tracked,
    VersionPlan,
    VersionState,
    after_failure,
    may_yet_serve,
    of_interest,
    plan,
    statuses,
)
from timonel.serving.manager.sources import VersionSource
from timonel.serving.settings.models import (
    Aliased,
    Latest,
    LoadSettings,
    ModelSettings,
    Specific,
)
from timonel.serving.status import TRANSIENT, Code, StatusError, not_found, without_folders

_LOG = logging.getLogger(__name__)
SLOW_S = 30.0
"""Time after which a look or a load is reported, and no longer delays the start of the server."""
_ENDED_KEPT = 32
_BUCKET_RETRY_S = 60.0
_CHANGING_S = 3.0
"""Time beyond that of two settling versions after which one is reported as changing."""


@dataclass(frozen=True)
class Found:
    """Result of a look: all versions, the state of those of interest, the rules and aliases."""

    numbers: Collection[int] = ()
    candidates: list[Candidate] = field(default_factory=list)
    rule: Rule = field(default_factory=lambda: Rule(Specific(versions=())))
    aliases: Mapping[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Look:
    """A look at a model's source.

    Args:
        source: The source; None for a model that is no longer configured.
        relist: Whether to look for new and removed versions; otherwise only known ones are checked.
    """

    source: VersionSource | None
    relist: bool
    rule_of: Callable[[Mapping[str, int]], Rule]
    tracked: Mapping[int, Tracked]
    began: float
    is_obsolete: bool = False

    def read(self) -> Found:
        """Look at the source; blocks while its file system hangs."""
        if self.source is None:
            return Found()
        numbers, aliases = self.source.versions(relist=self.relist), self.source.aliases()
        rule = self.rule_of(aliases)
        interesting = of_interest(rule, numbers, self.tracked)
        candidates = self.source.look(interesting, self._enough(rule, interesting))
        return Found(numbers, candidates, rule, aliases)

    def _enough(self, rule: Rule, interesting: Sequence[int]) -> int:
        """Return how many complete versions suffice, so that no others are checked."""
        if not isinstance(rule.policy, Latest):
            return len(interesting)
        records = (self.tracked.get(number) for number in interesting)
        failed = sum(record is not None and record.error is not None for record in records)
        return rule.policy.count + len(rule.keep) + failed


@dataclass(frozen=True)
class Unavailable:
    """A model without available version, and the one that failed last, if any."""

    name: str
    version: int | None
    error: StatusError

    def __str__(self) -> str:
        version = "" if self.version is None else f" version: {self.version}"
        return f"{{name: {self.name}{version}}} due to error: {self.error}"


class ManagedModel:
    """A model, its versions and their source."""

    def __init__(
        self,
        model: ModelSettings,
        settings: LoadSettings,
        catalogue: Catalogue,
        make_source: Callable[[str], VersionSource],
    ) -> None:
        self.model = model
        self.configured = True
        self.servables: dict[int, Servable] = {}
        self.may_serve = True
        """Whether a version may become available without a change of the source."""
        self.problem: str | None = None
        """Why the source has no version to load, or None."""
        self._settings = settings
        self._catalogue = catalogue
        self._tracked: dict[int, Tracked] = {}
        self._make_source = make_source
        self.source = make_source(model.base_path)
        self._candidates: list[Candidate] = []
        self._naming = Naming(labels=model.labels)
        self._look: Look | None = None
        self._incomplete_since: float | None = None
        """When a look first found only versions that may still change."""
        self._due = 0.0
        """Time of the next look."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def serves(self) -> bool:
        """Whether a version is loaded."""
        return bool(self.servables)

    @property
    def has_failed(self) -> bool:
        """Whether a version failed to load, and none is being loaded."""
        records = self._tracked.values()
        return any(r.error for r in records) and not any(
            r.state is VersionState.LOADING for r in records
        )

    @property
    def is_gone(self) -> bool:
        """Whether the model is unconfigured and has no version in memory."""
        return not self.configured and not any(r.in_memory for r in self._tracked.values())

    @property
    def has_status(self) -> bool:
        """Whether a version has a status to report, such as failed."""
        return bool(self._tracked)

    def configure(self, model: ModelSettings | None) -> None:
        """Apply new settings; None removes the model from the configuration."""
        is_unchanged = self.configured and model == self.model
        # A file that is applied again and again must not void each look that takes longer.
        if self._look is not None and not is_unchanged:
            self._look.is_obsolete = True
        if model is not None and self.configured and model.base_path == self.model.base_path:
            self.source.refresh()
        else:
            self.source.close()
            self._look = None
            self._naming = Naming()
            if model is not None:
                self.source = self._make_source(model.base_path)
        self.configured = model is not None
        self._naming = replace(self._naming, labels={} if model is None else model.labels)
        if model is not None and model != self.model:
            self.model = model
            self.problem = None
        self.may_serve = True
        self._due = 0.0

    def begin_look(self, now: float) -> Look | None:
        """Return a look if one is due and the last one has ended."""
        if self._look is not None:
            if now >= self._look.began + SLOW_S:
                path = self.model.base_path
                self._cannot_read(f"reading {path} has not ended after {SLOW_S:g} s")
            return None
        if now < self._due:
            return None
        self._due = math.inf
        source = self.source if self.configured else None
        # With a period of 0, check only the versions found by the first look.
        relist = self._settings.poll_s > 0
        self._look = Look(source, relist, self._rule_of(), dict(self._tracked), now)
        return self._look

    def end_look(self, look: Look, found: Future[Found], now: float) -> VersionPlan:
        """Return the versions to load and unload after a look."""
        if look is self._look:
            self._look = None
        if look.is_obsolete:
            return VersionPlan()
        todo = self._plan(found, now)
        self._due = min(self._due, self._next_due(now))
        return todo

    def next_look(self, now: float) -> float:
        """Return the time at which `begin_look` has work."""
        if self._look is None:
            return self._due
        slow = self._look.began + SLOW_S
        return slow if slow > now else math.inf

    def _plan(self, found: Future[Found], now: float) -> VersionPlan:
        try:
            seen = found.result()
        except OSError as error:
            # A bucket's error names its URI already.
            place = "" if error.filename is None else f"cannot read {error.filename}: "
            self._candidates = []
            self._cannot_read(f"{place}{error.strerror}")
            return VersionPlan()
        except Exception:  # noqa: BLE001 - logged, and retried
            _LOG.exception("Cannot check the versions of model %s.", self.name)
            return VersionPlan()
        self._candidates = seen.candidates
        self._forget(seen.numbers)
        self._name(seen.aliases)
        todo = plan(seen.rule, self._candidates, self._tracked, now)
        if self.configured:
            self._warn(_missing_versions(self.model, seen) or self._changing_versions(now))
        self.may_serve = (
            may_yet_serve(seen.rule, self._candidates, self._without_bucket_retries())
            if self._candidates
            else self._waits
        )
        return todo

    def _changing_versions(self, now: float) -> str | None:
        """Return that versions keep changing, if no other one serves or is about to."""
        if self.serves or any(candidate.complete for candidate in self._candidates):
            self._incomplete_since = None
            return None
        if self._incomplete_since is None:
            self._incomplete_since = now
        if now - self._incomplete_since < 2 * self._settings.settle_s + _CHANGING_S:
            return None
        numbers = ", ".join(str(candidate.number) for candidate in self._candidates)
        return (
            f"the files of version {numbers} in {self.model.base_path} keep changing; it is loaded "
            f"once they have not changed for {self._settings.settle_s:g} s"
        )

    def _next_due(self, now: float) -> float:
        if not self.configured:
            return math.inf
        times = [now + (self._settings.poll_s or math.inf)]
        if any(not candidate.complete for candidate in self._candidates):
            times.append(now + max(self._settings.settle_s / 2, 0.01))
        records = [self._tracked.get(candidate.number) for candidate in self._candidates]
        retries = [r.retry_at for r in records if r is not None and r.retry_at is not None]
        # An overdue retry was just considered and postponed.
        return min([*times, *(retry for retry in retries if retry > now)])

    def begin_load(self, candidate: Candidate) -> None:
        """Record that a version is being loaded."""
        before = self._tracked.get(candidate.number)
        same = before is not None and before.fingerprint == candidate.fingerprint
        attempts = before.attempts if before is not None and same else 0
        self._track(
            candidate.number, Tracked(VersionState.LOADING, candidate.fingerprint, attempts + 1)
        )

    def end_load(self, servable: Servable) -> None:
        """Publish a loaded version."""
        number = servable.version
        self.servables[number] = servable
        mark = self._tracked[number].fingerprint
        self._track(number, Tracked(VersionState.AVAILABLE, mark))
        _LOG.info("Loaded version %d of model %s.", number, self.name)

    def awaits(self, candidate: Candidate) -> bool:
        """Whether a load still matters; one that exceeded its limit may have been superseded."""
        record = self._tracked.get(candidate.number)
        if record is None or record.fingerprint != candidate.fingerprint:
            return False
        has_expired = record.state is VersionState.END and self.configured
        return has_expired or record.state is VersionState.LOADING

    def fail(self, number: int, error: StatusError, *, may_retry: bool = True) -> None:
        """Record that a version failed to load, and schedule any retry."""
        settings = self._settings
        before = self._tracked[number]
        # An unreachable bucket says nothing about the version: retry without limit.
        from_bucket = isinstance(error, BucketError)
        retry_s = settings.retry_s
        if from_bucket and before.attempts > settings.max_retries:
            retry_s = max(retry_s, _BUCKET_RETRY_S)
        record = after_failure(
            before,
            error,
            retries=before.attempts if from_bucket else settings.max_retries,
            retry_at=time.monotonic() + retry_s,
            transient=may_retry and (settings.as_tfserving or error.code in TRANSIENT),
        )
        self._track(number, record)
        after = cure(error) if record.retry_at is None else f"retrying in {retry_s:g} s"
        _LOG.error(
            "Cannot load version %d of model %s: %s%s.",
            number,
            self.name,
            first_line(error),
            f"; {after}" if after else "",
        )

    def begin_unload(self, number: int) -> Servable:
        """Withdraw a version from the catalogue, and return it."""
        servable = self.servables.pop(number)
        self._track(number, replace(self._tracked[number], state=VersionState.UNLOADING))
        return servable

    def end_unload(self, servable: Servable) -> None:
        """Record that a version is unloaded."""
        self._track(servable.version, Tracked(VersionState.END))
        _LOG.info("Unloaded version %d of model %s.", servable.version, self.name)

    def withdraw_all(self) -> list[Servable]:
        """Withdraw all versions, and return them."""
        servables = list(self.servables.values())
        self.servables.clear()
        self._publish()
        return servables

    def failure(self) -> Unavailable:
        """Return the reason why the model has no loaded version."""
        for number, record in sorted(self._tracked.items(), reverse=True):
            if record.error is not None:
                return Unavailable(self.name, number, record.error)
        return Unavailable(self.name, None, not_found(self.problem or "found no version to serve"))

    @property
    def _waits(self) -> bool:
        # Without polling, no new version is ever found.
        return self._settings.as_tfserving and self._settings.poll_s > 0

    def _rule_of(self) -> Callable[[Mapping[str, int]], Rule]:
        naming, policy = self._naming, self.model.policy
        unloads_first = self._settings.unloads_first(self.name)
        as_tfserving = self._settings.as_tfserving

        def rule(aliases: Mapping[str, int]) -> Rule:
            moved = naming.moved(aliases, policy)
            return moved.rule(policy, unloads_first=unloads_first, as_tfserving=as_tfserving)

        return rule

    def _name(self, aliases: Mapping[str, int]) -> None:
        before, self._naming = self._naming, self._naming.moved(aliases, self.model.policy)
        if self._naming.aliases != before.aliases:
            self._publish()

    def _without_bucket_retries(self) -> dict[int, Tracked]:
        """Return the tracked versions, without the unlimited retries for unreachable buckets."""
        return {
            number: replace(record, retry_at=None)
            if isinstance(record.error, BucketError)
            and record.attempts > self._settings.max_retries
            else record
            for number, record in self._tracked.items()
        }

    def _forget(self, numbers: Collection[int]) -> None:
        """Reset removed versions, so that they load again if they return."""
        ended = [n for n, record in self._tracked.items() if record.state is VersionState.END]
        removed = [number for number in sorted(ended) if number not in numbers]
        before = dict(self._tracked)
        for number in removed:
            self._tracked[number] = replace(self._tracked[number], fingerprint="", retry_at=None)
        for number in removed[: max(0, len(ended) - _ENDED_KEPT)]:
            del self._tracked[number]
        if self._tracked != before:
            self._publish()

    def _cannot_read(self, problem: str) -> None:
        self._warn(problem)
        self.may_serve = self._waits

    def _warn(self, problem: str | None) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        self._publish()
        if problem:
            kept = "keeping the loaded versions" if self.serves else "waiting for a version"
            _LOG.warning("Model %s: %s; %s.", self.name, problem, kept)

    def _track(self, number: int, record: Tracked) -> None:
        self._tracked[number] = record
        self._due = 0.0
        self._publish()

    def _publish(self) -> None:
        reported = statuses(self._tracked, retrying_is_loading=self._settings.as_tfserving)
        problem = None if self.problem is None else without_folders(self.problem)
        self._naming = self._naming.published(self.servables)
        self._catalogue.publish(self.name, self.servables, reported, problem, self._naming.served)


def cure(error: StatusError) -> str:
    """Return what the user can do about a version that cannot be loaded."""
    # Exporting again does not help for a model rejected as unsafe, nor for one that hangs.
    if error.code is Code.PERMISSION_DENIED:
        return ""  # the message says how to allow it
    if error.code is Code.DEADLINE_EXCEEDED:
        return "raise the time limit"
    if error.code is Code.FAILED_PRECONDITION:
        return "install what it needs"
    return "restore its files, or export the model again"


def first_line(error: StatusError) -> str:
    """Return the first line of an error's message, without its full stop."""
    return error.message.partition("\n")[0].removesuffix(".")


def _missing_versions(model: ModelSettings, found: Found) -> str | None:
    numbers = found.numbers
    if isinstance(model.policy, Aliased):
        number = found.aliases.get(model.policy.alias)
        if number is None:
            return f"found no alias {model.policy.alias} in {model.base_path}"
        if number not in numbers:
            return f"found no version {number}, {model.policy.alias}, in {model.base_path}"
    if isinstance(model.policy, Specific):
        if not model.policy.versions:
            return "its version policy names no version"
        if missing := sorted(set(model.policy.versions).difference(numbers)):
            return f"found no version {', '.join(map(str, missing))} in {model.base_path}"
    return None if numbers else f"found no version in {model.base_path}"
