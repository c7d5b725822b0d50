"""Documents of rollouts, below the endpoint's folder.

rollouts/<number>.json         rollout document: the request, with the last command
rollouts/<number>.state.json   rollout-state document, written by the control plane
rollouts/<number>.jsonl        counts over time, for the report; only appended to
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError, field_validator

from timonel.endpoints.folder import Revision
from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.guards import GuardState, parse_guards
from timonel.endpoints.rollouts.sequential import SequentialVerdict
from timonel.engines.resources import Observed
from timonel.errors import CorruptError, NotFoundError, SpecError
from timonel.storage.document_store import DocumentStore
from timonel.units import Seconds


class Phase(enum.StrEnum):
    """Phase of a rollout."""

    RUNNING = "running"
    PAUSED = "paused"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled back"
    ABORTED = "aborted"


class Command(enum.StrEnum):
    """Command of the user."""

    RESUME = "resume"
    PAUSE = "pause"
    ABORT = "abort"


_Model = TypeVar("_Model", bound=Observed)
_REQUEST = re.compile(r"/(\d+)\.json\Z", re.ASCII)


class Rollout(Observed):
    """Requested rollout.

    Attributes:
        to: Version that gets more requests.
        base: Version that it replaces.
        revision: Number of the endpoint's latest revision at the time of the request.
        steps: Percentages, ascending; the last is 100.
        interval_s: Shortest time of a step in seconds.
        guards: Conditions, as text.
        min_requests: Smallest number of requests to the new version in each step.
        alpha: Probability to roll back a version that meets all conditions.
        beta: Probability to promote a version with twice the odds of bad requests.
        start_timeout_s: Time limit for a first ready replica in seconds.
        created_at: Time of the request in seconds since the epoch.
        command: Last command of the user.
        commanded_at: Its time in seconds since the epoch.
    """

    to: int
    base: int
    revision: int
    steps: tuple[int, ...] = (5, 25, 50, 100)
    interval_s: Annotated[Seconds, Field(ge=1, le=30 * 86_400)] = 60.0
    guards: tuple[str, ...] = ("error_rate<1%",)
    min_requests: Annotated[int, Field(ge=1)] = 100
    alpha: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    beta: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    start_timeout_s: Annotated[Seconds, Field(gt=0)] = 600.0
    created_at: float = 0.0
    command: Command = Command.RESUME
    commanded_at: float = 0.0

    @field_validator("steps")
    @classmethod
    def _check_steps(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if list(steps) != sorted({*steps}) or not steps or steps[0] < 1 or steps[-1] != 100:
            raise ValueError("expected ascending percentages that end with 100, such as 5,25,100")
        return steps

    @field_validator("guards")
    @classmethod
    def _check_guards(cls, guards: tuple[str, ...]) -> tuple[str, ...]:
        try:
            parsed = parse_guards(",".join(guards))
        except SpecError as error:
            raise ValueError(str(error)) from error
        return tuple(map(str, parsed))


class RolloutState(Observed):
    """State of a rollout.

    Attributes:
        phase: Phase.
        message: Condition that it waits for, or reason of its end.
        step: Index of the step.
        percent: Percentage of requests to the new version.
        revision: Number of the latest revision that the rollout made, or is about to make.
        cause: Cause of that revision.
        ending: Phase that follows once that revision exists.
        is_foreign: Whether another command changed the endpoint during the rollout.
        shifted_at: Time from which that revision waits for replicas.
        since: Time from which its traffic rules are in effect.
        counts: Counts by version since then.
        checks: State of the guards.
        accepted: Guards accepted in this step.
        commanded_at: Time of the last command carried out.
        ended_at: Time of the end; None while in progress.
    """

    phase: Phase = Phase.RUNNING
    message: str = ""
    step: int = 0
    percent: int = 0
    revision: int = 0
    cause: str = ""
    ending: Phase | None = None
    is_foreign: bool = False
    shifted_at: float | None = None
    since: float | None = None
    counts: Mapping[int, Counts] = Field(default_factory=dict)
    checks: tuple[GuardState, ...] = ()
    accepted: tuple[str, ...] = ()
    commanded_at: float = 0.0
    ended_at: float | None = None

    def but(self, **changes: Any) -> Self:
        """Return a copy with changed fields."""
        return self.model_copy(update=changes)

    def verdict(self, check: GuardState) -> SequentialVerdict:
        """Return the verdict of a guard in this step; only a rejection overrides an acceptance."""
        is_accepted = (
            check.guard in self.accepted and check.verdict is not SequentialVerdict.REJECTED
        )
        return SequentialVerdict.ACCEPTED if is_accepted else check.verdict


class Point(Observed):
    """Counts over a part of a rollout.

    Attributes:
        at: End of the part in seconds since the epoch.
        percent: Percentage of requests to the new version.
        counts: Counts by version.
    """

    at: float
    percent: int
    counts: Mapping[int, Counts]


@dataclass(frozen=True)
class RolloutFolder:
    """Documents of one rollout.

    Args:
        number: Number of the rollout, from 1.
    """

    documents: DocumentStore
    endpoint: str
    number: int

    def rollout(self) -> Rollout:
        """Return the requested rollout."""
        return self._read(".json", "rollout", Rollout)

    def create(self, rollout: Rollout) -> None:
        """Create the rollout."""
        self.documents.create(self._name(".json"), "rollout", rollout.model_dump(mode="json"))

    def command(self, command: Command, now: float) -> None:
        """Record a command for the control plane."""
        update = {"command": command, "commanded_at": now}
        changed = self.rollout().model_copy(update=update)
        self.documents.write(self._name(".json"), "rollout", changed.model_dump(mode="json"))

    def state(self) -> RolloutState | None:
        """Return the state; None before the control plane has written it."""
        try:
            return self._read(".state.json", "rollout-state", RolloutState)
        except NotFoundError:
            return None

    @property
    def has_ended(self) -> bool:
        """Whether the rollout has ended."""
        state = self.state()
        return state is not None and state.ended_at is not None

    def write_state(self, state: RolloutState) -> None:
        """Publish the state."""
        body = state.model_dump(mode="json")
        self.documents.write(self._name(".state.json"), "rollout-state", body)

    def add_point(self, point: Point) -> None:
        """Append counts to the history."""
        self.documents.append_line(self._name(".jsonl"), point.model_dump_json())

    def points(self) -> list[Point]:
        """Return the history without lines truncated by a crash."""
        return self.documents.read_lines(self._name(".jsonl"), Point.model_validate_json)

    def _name(self, ending: str) -> str:
        return f"{self.endpoint}/rollouts/{self.number:04d}{ending}"

    def _read(self, ending: str, kind: str, model: type[_Model]) -> _Model:
        name = self._name(ending)
        body = self.documents.read(name, kind)
        try:
            return model.model_validate(body)
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            place = self.documents.place(name)
            raise CorruptError(f"the document {place} is damaged: {reason}") from error


def new_rollout(before: Revision, to: int, now: float, fields: Mapping[str, Any]) -> Rollout:
    """Return a rollout of a version."""
    spec = before.spec
    shares = {version: share for version, share in spec.traffic.percent.items() if share}
    if len(shares) > 1:
        found = ", ".join(f"{version}={share}" for version, share in sorted(shares.items()))
        raise SpecError(
            f"{spec.name} divides its requests: {found}",
            hint="give one version all of them with 'timonel endpoints split'",
        )
    (base,) = shares
    if base == to:
        raise SpecError(f"version {to} of {spec.name} gets all requests already")
    try:
        return Rollout(to=to, base=base, revision=before.number, created_at=now, **fields)
    except ValidationError as error:
        first = error.errors()[0]
        reason = str(first["msg"]).removeprefix("Value error, ")
        raise SpecError(f"invalid {first['loc'][0]} of a rollout: {reason}") from error


def rollouts(documents: DocumentStore, endpoint: str) -> list[RolloutFolder]:
    """Return an endpoint's rollouts, oldest first."""
    names = documents.find(f"{endpoint}/rollouts")
    found = (_REQUEST.search(name) for name in names)
    numbers = sorted(int(each[1]) for each in found if each is not None)
    return [RolloutFolder(documents, endpoint, number) for number in numbers]


def latest_rollout(documents: DocumentStore, endpoint: str) -> RolloutFolder | None:
    """Return an endpoint's latest rollout."""
    found = rollouts(documents, endpoint)
    return found[-1] if found else None
