"""Which task has which address, and what each task is told of the others: pure functions.

The value of ``TIMONEL_CLUSTER`` has the shape of ``TF_CONFIG`` and a generation number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from timonel.engines.spec import RoleSpec

# An evaluator watches from outside: its peers must not wait for it when their cluster forms.
OUTSIDE_CLUSTER = frozenset({"evaluator"})


class TaskEntry(TypedDict):
    """Which task of the cluster one is."""

    type: str
    index: int


class Assignment(TypedDict):
    """What a task is told: the cluster, its own place, which start of it this is, and why."""

    cluster: dict[str, list[str]]
    task: TaskEntry
    generation: int
    attempt: int
    reason: NotRequired[str]


def assign(
    roles: Sequence[RoleSpec], addresses: Mapping[str, str], generation: int
) -> dict[str, Assignment]:
    """Return each task's assignment.

    Args:
        roles: The job's roles.
        addresses: ``host:port`` of every task by its name.
        generation: The generation that these addresses belong to.
    """
    cluster: dict[str, list[str]] = {
        role.name: [addresses[f"{role.name}-{index}"] for index in range(role.replicas)]
        for role in roles
        if role.name not in OUTSIDE_CLUSTER
    }
    return {
        f"{role.name}-{index}": Assignment(
            cluster=cluster,
            task=TaskEntry(type=role.name, index=index),
            generation=generation,
            attempt=1,
        )
        for role in roles
        for index in range(role.replicas)
    }


def encode(assignment: Assignment) -> str:
    """Return an assignment as the text of ``TIMONEL_CLUSTER``."""
    return json.dumps(assignment, separators=(",", ":"))
