"""Decide the steps of a rollout. Pure: the time and the measurements are arguments.

The state contains the number of the latest revision by the rollout and is written before it. So a
restarted control plane makes a missing revision, and revisions by other commands are noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.documents import Command, Phase, Rollout, RolloutState
from timonel.endpoints.rollouts.guards import AGREEMENT, GuardState, check, parse_guards
from timonel.endpoints.rollouts.sequential import SequentialVerdict

_PAIRS_S = 15.0
"""Time after which the message of a step mentions that no answers were compared."""


@dataclass(frozen=True)
class Seen:
    """Observed state of the endpoint.

    Attributes:
        revision: Number of the latest revision.
        cause: Cause of the revision in the state; empty if it does not exist yet.
        routed: Number of the revision whose traffic rules are in effect.
        message: Why the latest revision is not in effect yet.
        counts: Counts by version since the last decision.
    """

    revision: int
    cause: str
    routed: int
    message: str | None = None
    counts: Mapping[int, Counts] | None = None


@dataclass(frozen=True)
class Shift:
    """Request to make a revision with another share of the new version.

    Attributes:
        percent: Percentage of requests to the new version.
        cause: Cause of the revision.
    """

    percent: int
    cause: str


def begin(rollout: Rollout) -> RolloutState:
    """Return the initial state, at the beginning of the first step."""
    return _shifted(rollout, RolloutState(), rollout.revision, step=0)


def decide(
    now: float, rollout: Rollout, state: RolloutState, seen: Seen
) -> tuple[Shift | None, RolloutState]:
    """Return the change to make, if any, and the new state. Store the state first.

    Args:
        now: The time in seconds.
        rollout: The rollout.
        state: Previous state.
        seen: Observed state of the endpoint.
    """
    if state.ended_at is not None:
        return None, state
    state = _commanded(now, rollout, _changed_by_others(rollout, state, seen), seen)
    if state.ended_at is None and not state.is_foreign and seen.revision >= state.revision:
        if state.ending is None:
            state = _advanced(now, rollout, _measured(now, rollout, state, seen), seen)
        else:
            state = state.but(phase=state.ending, ended_at=now)
    is_due = state.ended_at is None and not state.is_foreign and seen.revision < state.revision
    return Shift(state.percent, state.cause) if is_due else None, state


def _changed_by_others(rollout: Rollout, state: RolloutState, seen: Seen) -> RolloutState:
    """Pause if another command has made the latest revision."""
    own = seen.revision < state.revision or seen.cause == state.cause
    is_last = seen.revision <= state.revision or state.ending is not None
    if state.is_foreign or (own and is_last):
        return state
    message = (
        f"paused, as revision {seen.revision} changed the endpoint; --resume sets "
        f"{state.percent}% for version {rollout.to} again, --abort leaves the endpoint as it is"
    )
    return state.but(phase=Phase.PAUSED, is_foreign=True, message=message)


def _commanded(now: float, rollout: Rollout, state: RolloutState, seen: Seen) -> RolloutState:
    """Carry out a new command of the user."""
    if rollout.commanded_at <= state.commanded_at:
        return state
    state = state.but(commanded_at=rollout.commanded_at)
    is_paused, command = state.phase is Phase.PAUSED, rollout.command
    if command is Command.PAUSE and not is_paused and state.ending is None:
        message = f"paused at {state.percent}% for version {rollout.to}"
        state = state.but(phase=Phase.PAUSED, message=message)
    elif command is Command.RESUME and is_paused:
        state = _resumed(rollout, state, seen)
    elif command is Command.ABORT and state.is_foreign:
        message = f"aborted; the traffic stays that of revision {seen.revision}"
        state = state.but(phase=Phase.ABORTED, ended_at=now, message=message)
    elif command is Command.ABORT and state.ending is None:
        state = _returned(rollout, state, seen, Phase.ABORTED, "aborted")
    return state


def _resumed(rollout: Rollout, state: RolloutState, seen: Seen) -> RolloutState:
    """Return the state after starting the step again."""
    was_foreign = state.is_foreign
    state = state.but(phase=Phase.RUNNING, is_foreign=False, since=None)
    if not was_foreign:
        return state.but(message="")
    if state.ending in (None, Phase.PROMOTED):
        return _shifted(rollout, state, seen.revision, state.step)
    return state.but(revision=seen.revision + 1)


def _measured(now: float, rollout: Rollout, state: RolloutState, seen: Seen) -> RolloutState:
    """Add the measurements, and roll back if a guard is violated."""
    if seen.routed < state.revision:
        message = seen.message or f"version {rollout.to} starts"
        shifted_at = now if state.shifted_at is None else state.shifted_at
        if now - shifted_at > rollout.start_timeout_s:
            why = f"it was not ready after {rollout.start_timeout_s:g}s: {message}"
            return _returned(rollout, state, seen, Phase.ROLLED_BACK, why)
        message = state.message if state.phase is Phase.PAUSED else message
        return state.but(shifted_at=shifted_at, message=message)
    if state.since is None:
        # Counts until now belong to the previous step.
        return state.but(since=now, counts={}, checks=(), accepted=())
    found = seen.counts or {}
    counts = {
        version: state.counts.get(version, Counts()) + found.get(version, Counts())
        for version in (rollout.base, rollout.to)
    }
    guards = parse_guards(",".join(rollout.guards))
    # The probability is that of the whole rollout, so it is divided among all tests.
    share = len(guards) * max(1, sum(1 for step in rollout.steps if step < 100))
    checks = tuple(
        check(guard, counts[rollout.to], counts[rollout.base], rollout.alpha / share, rollout.beta)
        for guard in guards
    )
    passed = {each.guard for each in checks if each.verdict is SequentialVerdict.ACCEPTED}
    accepted = tuple(sorted({*state.accepted, *passed}))
    state = state.but(counts=counts, checks=checks, accepted=accepted)
    bad = [each for each in checks if each.verdict is SequentialVerdict.REJECTED]
    if bad:
        return _returned(rollout, state, seen, Phase.ROLLED_BACK, "; ".join(map(str, bad)))
    return state


def _advanced(now: float, rollout: Rollout, state: RolloutState, seen: Seen) -> RolloutState:
    """Take the next step if this one has passed; otherwise set the reason for waiting."""
    if state.since is None or state.phase is not Phase.RUNNING or state.ending is not None:
        return state
    requests = state.counts.get(rollout.to, Counts()).requests
    left_s = state.since + rollout.interval_s - now
    undecided = [each for each in state.checks if each.guard not in state.accepted]
    if not requests:
        message = f"waits for requests: version {rollout.to} had none at this step"
    elif requests < rollout.min_requests:
        message = f"waits for requests: {requests} of {rollout.min_requests}"
    elif left_s > 0:
        message = f"watches version {rollout.to} for {rollout.interval_s:g}s at {state.percent}%"
    elif now - state.since > _PAIRS_S and any(map(_lacks_pairs, undecided)):
        message = (
            f"waits for answers to compare: of {_total(state)} requests, the servers of both "
            "versions reported none"
        )
    elif undecided or not state.checks:
        message = "waits for more requests to decide: " + "; ".join(map(str, undecided))
    else:
        return _shifted(rollout, state, seen.revision, state.step + 1)
    return state.but(message=message)


def _lacks_pairs(found: GuardState) -> bool:
    return parse_guards(found.guard)[0].metric == AGREEMENT and not found.requests


def _total(state: RolloutState) -> int:
    return sum(counts.requests for counts in state.counts.values())


def _shifted(rollout: Rollout, state: RolloutState, after: int, step: int) -> RolloutState:
    """Return the state at the beginning of a step."""
    percent = rollout.steps[step]
    done = percent == 100
    return state.but(
        step=step,
        percent=percent,
        revision=after + 1,
        cause=f"rollout to {rollout.to}: {percent}%",
        shifted_at=None,
        since=None,
        ending=Phase.PROMOTED if done else None,
        message=f"version {rollout.to} was promoted" if done else "",
    )


def _returned(
    rollout: Rollout, state: RolloutState, seen: Seen, ending: Phase, why: str
) -> RolloutState:
    """Return the state that gives all requests back to the earlier version."""
    verb = "was rolled back: " if ending is Phase.ROLLED_BACK else ""
    return state.but(
        percent=0,
        revision=seen.revision + 1,
        cause=f"rollout to {rollout.to}: back to {rollout.base}",
        ending=ending,
        message=f"version {rollout.to} {verb}{why}" if verb else why,
    )
