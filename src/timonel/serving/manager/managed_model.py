"""State of a model in the manager's thread. Not thread-safe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from timonel.serving.manager.buckets.listing import BucketError
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.manager.plan import (
    Candidate,
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
from timonel.serving.settings import Latest, LoadSettings, ModelSettings, Specific
from timonel.serving.status import TRANSIENT, StatusError, not_found
from timonel.storage.content_cache import FolderLease

_LOG = logging.getLogger(__name__)
_ENDED_KEPT = 32
_BUCKET_RETRY_S = 60.0


@dataclass(frozen=True)
class Unavailable:
    """A model without available version.

    Args:
        name: The model's name.
        version: The version that failed last; None if no version was found.
        error: The reason.
    """

    name: str
    version: int | None
    error: StatusError

    def __str__(self) -> str:
        version = "" if self.version is None else f" version: {self.version}"
        return f"{{name: {self.name}{version}}} due to error: {self.error}"


class ManagedModel:
    """A model, its versions and their source.

    Args:
        model: The model's settings.
        settings: Times and limits.
        catalogue: The catalogue to publish versions in.
        make_source: Creates the source for a base path.
    """

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
        self._problem: str | None = None
        self._settings = settings
        self._catalogue = catalogue
        self._tracked: dict[int, Tracked] = {}
        self._make_source = make_source
        self.source = make_source(model.base_path)
        self._leases: dict[Servable, FolderLease] = {}
        self._candidates: list[Candidate] = []

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def serves(self) -> bool:
        """Whether a version is loaded."""
        return bool(self.servables)

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
        if model is None:
            self.source.close()
        elif not self.configured or model.base_path != self.model.base_path:
            self.source.close()
            self.source = self._make_source(model.base_path)
        else:
            self.source.refresh()
        self.configured = model is not None
        if model is not None and model != self.model:
            self.model = model
            self._problem = None
        self.may_serve = True

    def look(self, now: float, *, relist: bool) -> VersionPlan:
        """Look at the source and return the versions to load and unload.

        Args:
            now: The present monotonic time in seconds.
            relist: Whether to look for new and removed versions; otherwise only known ones are
                checked.
        """
        if not self.configured:
            self._candidates = []
            self._forget(())
            return plan(Rule(Specific(versions=())), [], self._tracked, now)
        try:
            numbers = self.source.versions(relist=relist)
        except OSError as error:
            # A bucket's error names its URI already.
            place = "" if error.filename is None else f"cannot read {error.filename}: "
            self._warn(f"{place}{error.strerror}")
            self._candidates = []
            self.may_serve = self._waits
            return VersionPlan()
        if numbers is None:
            return VersionPlan()
        self._forget(numbers)
        rule = self._rule()
        interesting = of_interest(rule, numbers, self._tracked)
        self._candidates = self.source.look(interesting, self._enough(rule, interesting))
        todo = plan(rule, self._candidates, self._tracked, now)
        self._warn(_missing_versions(self.model, numbers))
        self.may_serve = (
            may_yet_serve(rule, self._candidates, self._without_bucket_retries())
            if self._candidates
            else self._waits
        )
        return todo

    def next_look(self, now: float) -> float | None:
        """Return the time of the next look on ``now``'s clock, if earlier than the next poll."""
        if not self.configured:
            return None
        if any(not candidate.complete for candidate in self._candidates):
            return now + max(self._settings.settle_s / 2, 0.01)
        records = [self._tracked.get(candidate.number) for candidate in self._candidates]
        times = [r.retry_at for r in records if r is not None and r.retry_at is not None]
        return min(times, default=None)

    def begin_load(self, candidate: Candidate) -> None:
        """Record that a version is being loaded."""
        before = self._tracked.get(candidate.number)
        same = before is not None and before.fingerprint == candidate.fingerprint
        attempts = before.attempts if before is not None and same else 0
        self._track(
            candidate.number, Tracked(VersionState.LOADING, candidate.fingerprint, attempts + 1)
        )

    def end_load(self, servable: Servable, lease: FolderLease) -> None:
        """Publish a loaded version, and keep its folder until it is unloaded."""
        number = servable.version
        self.servables[number] = servable
        self._leases[servable] = lease
        self._track(
            number, replace(self._tracked[number], state=VersionState.AVAILABLE, attempts=0)
        )
        _LOG.info("Loaded version %d of model %s.", number, self.name)

    def fail(self, number: int, error: StatusError) -> None:
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
            transient=settings.retry_all or error.code in TRANSIENT,
        )
        self._track(number, record)
        _LOG.error(
            "Cannot load version %d of model %s: %s; %s.",
            number,
            self.name,
            first_line(error),
            "not retrying until its files change"
            if record.retry_at is None
            else f"retrying in {retry_s:g} s",
        )

    def begin_unload(self, number: int) -> Servable:
        """Withdraw a version from the catalogue, and return it."""
        servable = self.servables.pop(number)
        self._track(number, replace(self._tracked[number], state=VersionState.UNLOADING))
        return servable

    def end_unload(self, servable: Servable) -> None:
        """Record that a version is unloaded."""
        self.release(servable)
        self._track(servable.version, Tracked(VersionState.END))
        _LOG.info("Unloaded version %d of model %s.", servable.version, self.name)

    def release(self, servable: Servable) -> None:
        """Release the folder of a closed version."""
        if (lease := self._leases.pop(servable, None)) is not None:
            lease.release()

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
        return Unavailable(self.name, None, not_found(self._problem or "found no version to serve"))

    @property
    def problem(self) -> str | None:
        """Why the source cannot list its versions, or None."""
        return self._problem

    @property
    def _waits(self) -> bool:
        # Without polling, no new version is ever found.
        return self._settings.wait_for_versions and self._settings.poll_s > 0

    def _rule(self) -> Rule:
        return Rule(
            self.model.policy,
            self._settings.transition_of(self.name),
            frozenset(self.model.labels.values() if self._settings.keep_labelled else ()),
            self._settings.fall_back,
        )

    def _enough(self, rule: Rule, interesting: Sequence[int]) -> int:
        """Return how many complete versions suffice, so that no others are checked."""
        if not isinstance(rule.policy, Latest):
            return len(interesting)
        records = (self._tracked.get(number) for number in interesting)
        failed = sum(record is not None and record.error is not None for record in records)
        return rule.policy.count + len(rule.keep) + failed

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

    def _warn(self, problem: str | None) -> None:
        if problem and problem != self._problem:
            _LOG.warning("Model %s: %s; keeping the loaded versions.", self.name, problem)
        self._problem = problem

    def _track(self, number: int, record: Tracked) -> None:
        self._tracked[number] = record
        self._publish()

    def _publish(self) -> None:
        reported = statuses(self._tracked, retrying_is_loading=self._settings.retry_all)
        self._catalogue.publish(self.name, self.servables, reported)


def first_line(error: StatusError) -> str:
    """Return the first line of an error's message, without its full stop."""
    return error.message.partition("\n")[0].removesuffix(".")


def _missing_versions(model: ModelSettings, numbers: Collection[int]) -> str | None:
    if isinstance(model.policy, Specific):
        if not model.policy.versions:
            return "its version policy names no version"
        if missing := sorted(set(model.policy.versions).difference(numbers)):
            return f"found no version {', '.join(map(str, missing))} in {model.base_path}"
    return None if numbers else f"found no version in {model.base_path}"
