"""Decide about the replicas of a service. Pure functions.

A replica that fails restarts in place, under its name, with backoff. A change of the specification
replaces replicas: old replicas stop as new ones get ready, and at most one process more than
requested runs, including those that are stopping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from timonel.engines.service_spec import ReplicaState, ReplicaStatus, ServiceSpec
from timonel.processes.backoff import backoff_s

SURGE = 1
"""Processes beyond the requested number of replicas during a replacement."""
BACKOFF_S = 1.0
RESET_AFTER_S = 60.0
"""Time in the state ready after which earlier failures do not count for the backoff."""
FAILURES = 3
"""Failed checks in a row after which a ready replica is unready."""

_KEPT_FIRST: tuple[ReplicaState, ...] = ("ready", "unready", "starting", "restarting")


class Replica(BaseModel):
    """Replica of a service, as its supervisor knows it.

    Attributes:
        template: Digest of its specification.
        attempt: Number of starts.
        is_signalled: Whether it was sent SIGTERM.
        in_a_row: Failures in a row without `RESET_AFTER_S` of readiness.
        due_at: When it restarts, must be ready, or is killed, by its state; None for never.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    revision: int
    template: str
    state: ReplicaState = "restarting"
    addresses: Mapping[str, str] = {}
    attempt: int = 0
    is_signalled: bool = False
    in_a_row: int = 0
    message: str | None = None
    since: float
    due_at: float | None = None

    @property
    def has_process(self) -> bool:
        """Whether it has a process, unless that ended unnoticed."""
        return self.state != "restarting"

    def status(self) -> ReplicaStatus:
        """Return the status that users see."""
        return ReplicaStatus(
            name=self.name,
            revision=self.revision,
            state="starting" if self.attempt == 0 else self.state,
            addresses=self.addresses,
            restarts=max(0, self.attempt - 1),
            message=self.message,
            since=self.since,
        )


@dataclass(frozen=True)
class Changes:
    """Replicas to create, and replicas to stop by name."""

    create: int
    stop: tuple[str, ...]


def changes(template: str, requested: int, replicas: Sequence[Replica]) -> Changes:
    """Return the changes that bring the replicas closer to the request.

    Replicas that are not ready stop first, then the newest. While old replicas are left, replicas
    that are stopping take up room: their requests may last, and each has the memory of a model. A
    growing service does not wait for them.
    """
    running = [replica for replica in replicas if replica.state != "stopping"]
    new = [replica for replica in running if replica.template == template]
    old = [replica for replica in running if replica.template != template]
    surplus_new = _surplus(new, requested)
    ready = sum(replica.state == "ready" for replica in new)
    surplus_old = _surplus(old, max(0, requested - ready))
    stop = (*surplus_new, *surplus_old)
    if old:
        left = sum(replica.has_process or replica.name not in stop for replica in replicas)
        room = requested + SURGE - left
    else:
        room = requested
    return Changes(max(0, min(room, requested - len(new))), stop)


def _surplus(replicas: Iterable[Replica], keep: int) -> tuple[str, ...]:
    """Return the names of the replicas beyond ``keep``."""
    # A stable sort: within a state, the oldest stay.
    order = sorted(replicas, key=lambda replica: _KEPT_FIRST.index(replica.state))
    return tuple(replica.name for replica in order[keep:])


def launched(
    replica: Replica, addresses: Mapping[str, str], spec: ServiceSpec, now: float
) -> Replica:
    """Return a replica whose process is about to start."""
    return replica.model_copy(
        update={
            "state": "starting",
            "attempt": replica.attempt + 1,
            "addresses": dict(addresses),
            "since": now,
            "due_at": now + spec.start_timeout_s,
        }
    )


def ended(replica: Replica, spec: ServiceSpec, reason: str, now: float) -> Replica | None:
    """Return a replica whose process has ended; None if it was stopped on request."""
    if replica.state == "stopping":
        return None
    lasted = replica.state == "ready" and now - replica.since >= RESET_AFTER_S
    in_a_row = 1 if lasted else replica.in_a_row + 1
    return replica.model_copy(
        update={
            "state": "restarting",
            "addresses": {},
            "in_a_row": in_a_row,
            "message": reason,
            "since": now,
            "due_at": now + backoff_s(in_a_row, BACKOFF_S, spec.restart_delay_s),
        }
    )


def checked(replica: Replica, failures: int, now: float) -> Replica:
    """Return a replica after a readiness check.

    Args:
        failures: Failed checks in a row; 0 after a success.
    """
    if failures == 0 and replica.state in ("starting", "unready"):
        return replica.model_copy(update={"state": "ready", "since": now, "due_at": None})
    if failures >= FAILURES and replica.state == "ready":
        return replica.model_copy(update={"state": "unready", "since": now})
    return replica


def stopping(replica: Replica, spec: ServiceSpec, now: float) -> Replica | None:
    """Return a replica that is asked to stop; None if it has no process."""
    if not replica.has_process:
        return None
    due_at = now + spec.stop_delay_s + spec.stop_grace_s
    update = {"state": "stopping", "since": now, "due_at": due_at}
    return replica.model_copy(update=update)


def adopted(replica: Replica, spec: ServiceSpec, now: float) -> Replica:
    """Return a replica of an earlier supervisor, whose clock may have been ahead."""
    latest = now + max(
        spec.restart_delay_s, spec.start_timeout_s, spec.stop_delay_s + spec.stop_grace_s
    )
    if replica.due_at is None or replica.due_at <= latest:
        return replica
    return replica.model_copy(update={"due_at": latest})
