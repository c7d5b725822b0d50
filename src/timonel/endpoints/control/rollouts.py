"""Run the rollouts of endpoints: measure, decide, make revisions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from timonel.endpoints.control.endpoint import ControlledEndpoint
from timonel.endpoints.folder import EndpointFolder, Revision
from timonel.endpoints.gateway.process import Admin
from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.documents import (
    Point,
    Rollout,
    RolloutFolder,
    RolloutState,
    latest_rollout,
)
from timonel.endpoints.rollouts.guards import AGREEMENT, parse_guards
from timonel.endpoints.rollouts.measure import CountReader
from timonel.endpoints.rollouts.pairs import Pairs
from timonel.endpoints.rollouts.plan import Seen, Shift, begin, decide
from timonel.endpoints.spec import EndpointSpec, service_name
from timonel.errors import ServingError
from timonel.serving.telemetry.answers import Answer

_POINTS = 20
"""Parts of a step in the history."""

logger = logging.getLogger(__name__)


class Rollouts:
    """Runs the latest rollout of each endpoint. Not thread-safe."""

    def __init__(self) -> None:
        self._reader = CountReader()
        self._runners: dict[str, _Runner] = {}

    @property
    def compared(self) -> dict[str, tuple[int, int]]:
        """Versions whose answers are compared, old and new, by endpoint."""
        found = ((name, runner.compared) for name, runner in self._runners.items())
        return {name: versions for name, versions in found if versions is not None}

    def step(
        self,
        now: float,
        endpoints: Iterable[ControlledEndpoint],
        admins: Mapping[str, Admin],
        answers: Mapping[str, Sequence[Answer]],
    ) -> None:
        """Measure, decide and carry out once.

        Args:
            now: The time in seconds.
            endpoints: All endpoints that are not being deleted, with their revisions.
            admins: Admin interfaces of Envoy by process.
            answers: New answers of compared versions by service.
        """
        known = {endpoint.name: endpoint for endpoint in endpoints}
        self._runners = {
            name: self._runners.get(name) or _Runner(each.folder) for name, each in known.items()
        }
        active: dict[str, tuple[int, ...]] = {}
        for name, runner in self._runners.items():
            with known[name].faults.of("rollout documents"):
                active[name] = runner.versions()
        counts = self._counts(active, admins)
        for name, runner in self._runners.items():
            faults = known[name].faults
            with faults.of("rollout"):
                if name in counts:
                    runner.step(now, known[name], counts[name], answers)
            with faults.of("rollout statistics"):
                if name in counts and self._reader.is_blind:
                    raise ServingError(
                        "the gateway's statistics cannot be read, so the rollout waits",
                        hint="stop the gateway's process, which restarts it",
                    )

    def _counts(
        self, versions: Mapping[str, tuple[int, ...]], admins: Mapping[str, Admin]
    ) -> dict[str, dict[int, Counts]]:
        services = {
            name: {version: service_name(name, version) for version in own}
            for name, own in versions.items()
            if own
        }
        if not services:
            self._reader.forget()
            return {}
        names = {service for own in services.values() for service in own.values()}
        found = self._reader.read(admins, names)
        return {
            name: {version: found[service] for version, service in own.items()}
            for name, own in services.items()
        }


class _Runner:
    """Runs the latest rollout of one endpoint."""

    def __init__(self, folder: EndpointFolder) -> None:
        self._folder = folder
        self._documents: RolloutFolder | None = None
        self._state: RolloutState | None = None
        self._part: dict[int, Counts] = {}
        self._part_at = 0.0
        self._pairs = Pairs()
        self.compared: tuple[int, int] | None = None
        """Versions whose answers are compared, old and new."""

    def versions(self) -> tuple[int, ...]:
        """Return the versions to measure; none without a rollout in progress."""
        self.compared = None
        found = latest_rollout(self._folder.documents, self._folder.name)
        if found != self._documents:
            self._documents, self._part, self._pairs = found, {}, Pairs()
            self._state = None if found is None else found.state()
        if found is None or (self._state is not None and self._state.ended_at is not None):
            return ()
        rollout = found.rollout()
        versions = (rollout.base, rollout.to)
        guards = parse_guards(",".join(rollout.guards))
        self.compared = versions if any(each.metric == AGREEMENT for each in guards) else None
        return versions

    def step(
        self,
        now: float,
        endpoint: ControlledEndpoint,
        counts: Mapping[int, Counts],
        answers: Mapping[str, Sequence[Answer]],
    ) -> None:
        """Decide once and carry it out. `versions` comes before.

        Args:
            now: The time in seconds.
            counts: Counts by version since the call before.
            answers: New answers of compared versions by service.
        """
        assert self._documents is not None
        rollout, latest, status = self._documents.rollout(), endpoint.latest, endpoint.status
        counts = dict(counts)
        for version in self.compared or ():
            new = answers.get(service_name(self._folder.name, version), ())
            counts[rollout.to] += self._pairs.add(now, version, new)
        before = self._state or begin(rollout)
        made = endpoint.revision(before.revision)
        cause = "" if made is None else made.cause
        seen = Seen(latest.number, cause, status.routed, status.message, counts)
        shift, state = decide(now, rollout, before, seen)
        if state != self._state:
            self._documents.write_state(state)
            if state.phase != before.phase:
                logger.info("%s: rollout %s: %s", self._folder.name, state.phase, state.message)
            self._state = state
        percent = (endpoint.routed or latest).spec.traffic.percent.get(rollout.to, 0)
        ends = shift is not None or state.ended_at is not None
        self._record(now, rollout, percent, counts, ends=ends)
        if shift is not None:
            self._shift(rollout, state, latest, shift)

    def _shift(self, rollout: Rollout, state: RolloutState, latest: Revision, shift: Shift) -> None:
        spec = shifted(latest.spec, rollout, shift.percent)
        made = self._folder.add(spec, shift.cause, after=latest.number)
        logger.info("%s: revision %d: %s", self._folder.name, made.number, shift.cause)
        if made.number != state.revision:
            # The shares were these already.
            self._state = state.but(revision=made.number, cause=made.cause)

    def _record(
        self,
        now: float,
        rollout: Rollout,
        percent: int,
        counts: Mapping[int, Counts],
        *,
        ends: bool,
    ) -> None:
        """Add a part of a step to the history; the last one ends with the step."""
        assert self._documents is not None
        for version, found in counts.items():
            self._part[version] = self._part.get(version, Counts()) + found
        is_due = ends or now - self._part_at >= rollout.interval_s / _POINTS
        if is_due and any(each.requests for each in self._part.values()):
            self._documents.add_point(Point(at=now, percent=percent, counts=self._part))
            self._part, self._part_at = {}, now


def shifted(spec: EndpointSpec, rollout: Rollout, percent: int) -> EndpointSpec:
    """Return a specification with another share of the new version."""
    shares = {rollout.base: 100 - percent, rollout.to: percent}
    update = {"percent": {version: share for version, share in shares.items() if share}}
    return spec.model_copy(update={"traffic": spec.traffic.model_copy(update=update)})
