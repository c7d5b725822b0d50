"""State of a model in the loader's thread. Not thread-safe."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace

from timonel.serving.manager.buckets.factory import MakeSource
from timonel.serving.manager.buckets.store import BucketError
from timonel.serving.manager.catalogue import Catalogue, Servable, describe
from timonel.serving.manager.plan import (
    Candidate,
    Plan,
    Rule,
    State,
    Tracked,
    after_failure,
    may_yet_serve,
    of_interest,
    plan,
    statuses,
)
from timonel.serving.manager.readiness import what_is_missing
from timonel.serving.manager.reload import Unavailable
from timonel.serving.manager.sources import Held
from timonel.serving.settings import Latest, LoadSettings, ModelSettings, Specific
from timonel.serving.status import TRANSIENT, StatusError, not_found

_LOG = logging.getLogger(__name__)
_ENDED_KEPT = 32
_NOTHING = Specific(versions=())
_BUCKET_RETRY_S = 60.0


class ManagedModel:
    """A model, its versions and its folder.

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
        make_source: MakeSource,
    ) -> None:
        self.model = model
        self.configured = True
        self.servables: dict[int, Servable] = {}
        self.hopeful = True
        self.complaint: str | None = None
        self._settings = settings
        self._catalogue = catalogue
        self._tracked: dict[int, Tracked] = {}
        self._make_source = make_source
        self._source = make_source(model.base_path)
        self._held: dict[Servable, Held] = {}
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
    def has_ended(self) -> bool:
        """Whether a version has a status to report, such as failed."""
        return bool(self._tracked)

    def configure(self, model: ModelSettings | None) -> None:
        """Apply new settings; None removes the model from the configuration."""
        if model is None:
            self._source.close()
        elif not self.configured or model.base_path != self.model.base_path:
            self._source.close()
            self._source = self._make_source(model.base_path)
        else:
            self._source.refresh()
        self.configured = model is not None
        if model is not None and model != self.model:
            self.model = model
            self.complaint = None
        self.hopeful = True

    def look(self, now: float, *, relist: bool) -> Plan:
        """Look at the folder and return the versions to load and unload.

        Args:
            now: The present monotonic time in seconds.
            relist: Whether to look for new and removed versions; otherwise only known ones are
                checked.
        """
        if not self.configured:
            self._candidates = []
            self._forget(())
            return plan(Rule(_NOTHING), [], self._tracked, now)
        numbers = self._list(relist=relist)
        if numbers is None:
            return Plan()
        self._forget(numbers)
        rule = self._rule()
        interesting = of_interest(rule, numbers, self._tracked)
        self._candidates = self._source.look(interesting, self._enough(rule, interesting))
        todo = plan(rule, self._candidates, self._tracked, now)
        self._complain(what_is_missing(self.model, numbers))
        self.hopeful = (
            may_yet_serve(rule, self._candidates, self._given_up())
            if self._candidates
            else self._waits
        )
        return todo

    def wakes_at(self, now: float) -> float | None:
        """Return the time of the next look, on ``now``'s clock, if any."""
        if not self.configured:
            return None
        if any(not candidate.complete for candidate in self._candidates):
            return now + max(self._settings.settle_s / 2, 0.01)
        return self._next_attempt()

    def begin_load(self, candidate: Candidate) -> None:
        """Record that a version is being loaded."""
        before = self._tracked.get(candidate.number)
        same = before is not None and before.fingerprint == candidate.fingerprint
        attempts = before.attempts if before is not None and same else 0
        self._track(candidate.number, Tracked(State.LOADING, candidate.fingerprint, attempts + 1))

    def fetch(self, candidate: Candidate) -> Future[Held]:
        """Return a future of a version's local folder, downloading it if needed."""
        return self._source.fetch(candidate)

    def end_load(self, servable: Servable, held: Held) -> None:
        """Publish a loaded version, and hold its folder until it is unloaded."""
        number = servable.version
        self.servables[number] = servable
        self._held[servable] = held
        self._track(number, replace(self._tracked[number], state=State.AVAILABLE, attempts=0))
        _LOG.info("model %s: version %d is loaded", self.name, number)

    def fail(self, number: int, error: StatusError) -> None:
        """Record that a version failed to load, and schedule any retry."""
        settings = self._settings
        before = self._tracked[number]
        many = before.attempts > settings.max_retries
        # An unreachable bucket says nothing about the version: retry without limit.
        away = isinstance(error, BucketError)
        retry_s = max(settings.retry_s, _BUCKET_RETRY_S) if away and many else settings.retry_s
        record = after_failure(
            before,
            error,
            retries=before.attempts if away else settings.max_retries,
            retry_at=time.monotonic() + retry_s,
            transient=settings.retry_all or error.code in TRANSIENT,
        )
        self._track(number, record)
        _LOG.error(
            "model %s: version %d cannot be loaded (%s); %s",
            self.name,
            number,
            describe(error),
            f"trying again in {retry_s:g} s"
            if record.retry_at is not None
            else "it is left alone until its files change",
        )

    def begin_unload(self, number: int) -> Servable:
        """Withdraw a version from the catalogue, and return it."""
        servable = self.servables.pop(number)
        self._track(number, replace(self._tracked[number], state=State.UNLOADING))
        return servable

    def release(self, servable: Servable) -> None:
        """Release the folder of a closed version."""
        if (held := self._held.pop(servable, None)) is not None:
            held.release()

    def close(self) -> None:
        """Close the source of versions."""
        self._source.close()

    def end_unload(self, number: int) -> None:
        """Record that a version is unloaded."""
        self._track(number, Tracked(State.END))
        _LOG.info("model %s: version %d is unloaded", self.name, number)

    def give_up(self) -> list[Servable]:
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
        reason = not_found(self.complaint or "found none that it may serve")
        return Unavailable(self.name, None, reason)

    @property
    def _waits(self) -> bool:
        # Without polling, no new version is ever found.
        return self._settings.wait_for_versions and self._settings.poll_s > 0

    def _next_attempt(self) -> float | None:
        records = [self._tracked.get(candidate.number) for candidate in self._candidates]
        times = [r.retry_at for r in records if r is not None and r.retry_at is not None]
        return min(times, default=None)

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

    def _given_up(self) -> dict[int, Tracked]:
        """Return the tracked versions, without retries for unreachable buckets."""
        return {
            number: replace(record, retry_at=None)
            if isinstance(record.error, BucketError)
            and record.attempts > self._settings.max_retries
            else record
            for number, record in self._tracked.items()
        }

    def _list(self, *, relist: bool) -> Collection[int] | None:
        try:
            return self._source.versions(relist=relist)
        except OSError as error:
            self._complain(f"cannot read its folder: {error.strerror}")
            self._candidates = []
            self.hopeful = self._waits
            return None

    def _forget(self, numbers: Collection[int]) -> None:
        """Reset removed versions, so that they load again if they return."""
        ended = [n for n, record in self._tracked.items() if record.state is State.END]
        away = [number for number in sorted(ended) if number not in numbers]
        before = dict(self._tracked)
        for number in away:
            self._tracked[number] = replace(self._tracked[number], fingerprint="", retry_at=None)
        for number in away[: max(0, len(ended) - _ENDED_KEPT)]:
            del self._tracked[number]
        if self._tracked != before:
            self._publish()

    def _complain(self, complaint: str | None) -> None:
        if complaint and complaint != self.complaint:
            _LOG.warning("model %s: %s; keeping what is loaded", self.name, complaint)
        self.complaint = complaint

    def _track(self, number: int, record: Tracked) -> None:
        self._tracked[number] = record
        self._publish()

    def _publish(self) -> None:
        told = statuses(self._tracked, retrying_is_loading=self._settings.retry_all)
        self._catalogue.publish(self.name, self.servables, told)
