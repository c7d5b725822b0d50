"""How many tasks of elastic roles a generation has: pure functions of plain values.

Tasks of one role are alike, so an elastic role is a number of slots. A slot that loses its task is
filled again at once; one that loses it again soon, or does not get it up in time, is left out for a
while. A generation has what is wished for less what is left out, and never less than the role's
least nor more than its most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from timonel.engines.base import FailureCause
from timonel.engines.spec import RestartPolicy, RoleSpec
from timonel.errors import SpecError

# A task is gone, and not by the user's fault. Who lost a peer is not the one that was lost.
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
    """One slot of a role that is left out until some time."""

    role: str
    until: float


@dataclass(frozen=True)
class Slots:
    """What is known of the slots of elastic roles.

    Attributes:
        wished: How many tasks the user asked for, by role; a role's most without it.
        resting: The slots that are left out.
        losses: How many tasks a role lost in a row, each soon after the one before.
        rests: How many slots of a role were left out in such a row.
    """

    wished: Mapping[str, int] = field(default_factory=dict)
    resting: tuple[Rest, ...] = ()
    losses: Mapping[str, int] = field(default_factory=dict)
    rests: Mapping[str, int] = field(default_factory=dict)

    @property
    def wake_at(self) -> float | None:
        """When the next slot is back."""
        return min((rest.until for rest in self.resting), default=None)


def sizes(roles: Sequence[RoleSpec], slots: Slots) -> dict[str, int]:
    """Return how many tasks of each role a generation is to have."""
    return {role.name: _size(role, slots) for role in roles}


def resized(roles: Sequence[RoleSpec], sizes: Mapping[str, int]) -> tuple[RoleSpec, ...]:
    """Return the roles with so many tasks; one without any is left out."""
    return tuple(
        role.model_copy(update={"replicas": sizes[role.name]})
        for role in roles
        if sizes[role.name] > 0
    )


def wish(roles: Sequence[RoleSpec], slots: Slots, wanted: Mapping[str, int]) -> Slots:
    """Return the slots after the user asked for other numbers; they are kept within bounds.

    Whoever asks for tasks wants to see them now: of those roles nothing is left out any more.
    """
    known: dict[str, RoleSpec] = {role.name: role for role in roles if role.is_elastic}
    bounded = {
        name: min(max(count, known[name].least), known[name].replicas)
        for name, count in wanted.items()
        if name in known
    }
    resting = tuple(rest for rest in slots.resting if rest.role not in bounded)
    return replace(slots, wished={**slots.wished, **bounded}, resting=resting)


def check_sizes(roles: Sequence[RoleSpec], wanted: Mapping[str, int]) -> None:
    """Check that roles may have these sizes.

    Raises:
        SpecError: One is not there, is not elastic, or the number is out of its bounds.
    """
    known = {role.name: role for role in roles if role.is_elastic}
    names = ", ".join(known) or "none"
    for name, count in wanted.items():
        role = next((role for role in known.values() if role.name == name), None)
        if role is None:
            raise SpecError(
                f"expected a role whose size may change, got {name}", hint=f"of this job: {names}"
            )
        if not role.least <= count <= role.replicas:
            raise SpecError(f"expected {role.least} to {role.replicas} {name}s, got {count}")


def lose(  # noqa: PLR0913 - what a loss is made of
    roles: Sequence[RoleSpec],
    slots: Slots,
    role_name: str,
    cause: FailureCause,
    policy: RestartPolicy,
    *,
    count: int = 1,
    ran_s: float,
    now: float,
) -> Slots:
    """Return the slots after tasks of a role were lost.

    Args:
        roles: The job's roles.
        slots: What was known before.
        role_name: The role.
        cause: Why they were lost.
        policy: How long a slot is left out, and after which time a loss stands for itself.
        count: How many were lost together.
        ran_s: How long they had run.
        now: The time.
    """
    role = next(role for role in roles if role.name == role_name)
    if not role.is_elastic or cause not in LOSSES:
        return slots
    if ran_s >= policy.reset_after_s:
        slots = _forgotten(slots, role_name)
    losses = slots.losses.get(role_name, 0) + 1
    slots = replace(slots, losses={**slots.losses, role_name: losses})
    if cause is not FailureCause.START_TIMEOUT and losses < _LOSSES_BEFORE_REST:
        return slots
    return _rest(slots, role, min(count, _size(role, slots) - role.least), policy.rest_s, now)


def recover(slots: Slots, now: float) -> Slots:
    """Return the slots at the time ``now``: those that have rested are back."""
    return replace(slots, resting=tuple(rest for rest in slots.resting if rest.until > now))


def _size(role: RoleSpec, slots: Slots) -> int:
    if not role.is_elastic:
        return role.replicas
    resting = sum(1 for rest in slots.resting if rest.role == role.name)
    return max(role.least, slots.wished.get(role.name, role.replicas) - resting)


def _rest(slots: Slots, role: RoleSpec, count: int, rest_s: float, now: float) -> Slots:
    if count < 1:
        return slots
    before = slots.rests.get(role.name, 0)
    until = now + rest_s * 2.0 ** min(before, _MOST_DOUBLINGS)
    return replace(
        slots,
        resting=(*slots.resting, *(Rest(role.name, until) for _ in range(count))),
        rests={**slots.rests, role.name: before + 1},
    )


def _forgotten(slots: Slots, role_name: str) -> Slots:
    return replace(
        slots,
        losses={name: n for name, n in slots.losses.items() if name != role_name},
        rests={name: n for name, n in slots.rests.items() if name != role_name},
    )
