"""Sizes of elastic roles. Pure functions.

Tasks of a role are interchangeable, so an elastic role is a number of slots. A slot that loses its
task is refilled at once. A slot that soon loses it again, or whose task does not start in time, is
left out for a while. A generation has the requested size less the slots left out, within the role's
minimum and maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from timonel.engines.base import FailureCause
from timonel.engines.spec import RestartPolicy, RoleSpec
from timonel.errors import SpecError

# The task was lost, not failed by the user. LOST_PEER is no loss: another task was lost.
LOSSES = frozenset(
    {
        FailureCause.CRASHED,
        FailureCause.HUNG,
        FailureCause.PREEMPTED,
        FailureCause.START_TIMEOUT,
    }
)
_LOSSES_BEFORE_REST = 2
_MOST_DOUBLINGS = 5


@dataclass(frozen=True)
class Rest:
    """A slot that is left out until a given time."""

    role: str
    until: float


@dataclass(frozen=True)
class ElasticSlots:
    """State of the slots of elastic roles.

    Attributes:
        requested: Requested number of tasks by role; a missing role has its maximum.
        resting: Slots that are left out.
        losses: Number of losses in a row by role, each soon after the previous one.
        rests: Number of times that slots of a role were left out in such a row.
    """

    requested: Mapping[str, int] = field(default_factory=dict)
    resting: tuple[Rest, ...] = ()
    losses: Mapping[str, int] = field(default_factory=dict)
    rests: Mapping[str, int] = field(default_factory=dict)

    @property
    def wake_at(self) -> float | None:
        """Time when the next slot returns."""
        return min((rest.until for rest in self.resting), default=None)


def sizes(roles: Sequence[RoleSpec], slots: ElasticSlots) -> dict[str, int]:
    """Return the size of each role in the next generation."""
    return {role.name: _size(role, slots) for role in roles}


def resized(roles: Sequence[RoleSpec], sizes: Mapping[str, int]) -> tuple[RoleSpec, ...]:
    """Return the roles with these sizes, without those of size 0."""
    return tuple(
        role.model_copy(update={"replicas": sizes[role.name]})
        for role in roles
        if sizes[role.name] > 0
    )


def request_sizes(
    roles: Sequence[RoleSpec], slots: ElasticSlots, requested: Mapping[str, int]
) -> ElasticSlots:
    """Return the slots with newly requested sizes, clamped to their bounds.

    Slots of these roles that were left out return at once.
    """
    known: dict[str, RoleSpec] = {role.name: role for role in roles if role.is_elastic}
    bounded = {
        name: min(max(count, known[name].least), known[name].replicas)
        for name, count in requested.items()
        if name in known
    }
    resting = tuple(rest for rest in slots.resting if rest.role not in bounded)
    return replace(slots, requested={**slots.requested, **bounded}, resting=resting)


def check_sizes(roles: Sequence[RoleSpec], requested: Mapping[str, int]) -> None:
    """Check that roles may have these sizes."""
    known = {role.name: role for role in roles if role.is_elastic}
    if not known:
        raise SpecError("this job is not elastic", hint="start it with --workers MIN:MAX")
    for name, count in requested.items():
        role = next((role for role in known.values() if role.name == name), None)
        if role is None:
            raise SpecError(
                f"the size of role {name} is fixed",
                hint=f"the job's elastic roles are: {', '.join(known)}",
            )
        if not role.least <= count <= role.replicas:
            raise SpecError(f"expected {role.least} to {role.replicas} {name}s, got {count}")


def record_loss(  # noqa: PLR0913 - the properties of a loss
    roles: Sequence[RoleSpec],
    slots: ElasticSlots,
    role_name: str,
    cause: FailureCause,
    policy: RestartPolicy,
    *,
    count: int = 1,
    ran_s: float,
    now: float,
) -> ElasticSlots:
    """Return the slots after tasks of a role were lost.

    Args:
        policy: How long slots are left out, and after which run time a loss starts a new row.
        ran_s: Run time of the generation in seconds.
    """
    role = next(role for role in roles if role.name == role_name)
    if not role.is_elastic or cause not in LOSSES:
        return slots
    if ran_s >= policy.reset_after_s:
        slots = _without_losses(slots, role_name)
    losses = slots.losses.get(role_name, 0) + 1
    slots = replace(slots, losses={**slots.losses, role_name: losses})
    if cause is not FailureCause.START_TIMEOUT and losses < _LOSSES_BEFORE_REST:
        return slots
    return _rest(slots, role, min(count, _size(role, slots) - role.least), policy.rest_s, now)


def recover(slots: ElasticSlots, now: float) -> ElasticSlots:
    """Return the slots at time ``now``, including those that have returned."""
    return replace(slots, resting=tuple(rest for rest in slots.resting if rest.until > now))


def _size(role: RoleSpec, slots: ElasticSlots) -> int:
    if not role.is_elastic:
        return role.replicas
    resting = sum(1 for rest in slots.resting if rest.role == role.name)
    return max(role.least, slots.requested.get(role.name, role.replicas) - resting)


def _rest(
    slots: ElasticSlots, role: RoleSpec, count: int, rest_s: float, now: float
) -> ElasticSlots:
    if count < 1:
        return slots
    before = slots.rests.get(role.name, 0)
    until = now + rest_s * 2.0 ** min(before, _MOST_DOUBLINGS)
    return replace(
        slots,
        resting=(*slots.resting, *(Rest(role.name, until) for _ in range(count))),
        rests={**slots.rests, role.name: before + 1},
    )


def _without_losses(slots: ElasticSlots, role_name: str) -> ElasticSlots:
    return replace(
        slots,
        losses={name: n for name, n in slots.losses.items() if name != role_name},
        rests={name: n for name, n in slots.rests.items() if name != role_name},
    )
