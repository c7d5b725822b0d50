"""Assign addresses and cluster descriptions to tasks. Pure functions.

``TIMONEL_CLUSTER`` has the shape of ``TF_CONFIG`` plus a generation number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from timonel.engines.spec import RoleSpec

# Evaluators are not in the cluster: its other tasks must not wait for them as it forms.
OUTSIDE_CLUSTER = frozenset({"evaluator"})


class TaskEntry(TypedDict):
    """Role and index of a task."""

    type: str
    index: int


class TaskAssignment(TypedDict):
    """Cluster description of a task, with its generation, attempt and restart reason."""

    cluster: dict[str, list[str]]
    task: TaskEntry
    generation: int
    attempt: int
    reason: NotRequired[str]


def assign(
    roles: Sequence[RoleSpec], addresses: Mapping[str, str], generation: int
) -> dict[str, TaskAssignment]:
    """Return the assignment of each task, by task name.

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
        f"{role.name}-{index}": TaskAssignment(
            cluster=cluster,
            task=TaskEntry(type=role.name, index=index),
            generation=generation,
            attempt=1,
        )
        for role in roles
        for index in range(role.replicas)
    }


def encode(assignment: TaskAssignment) -> str:
    """Encode an assignment as the value of ``TIMONEL_CLUSTER``."""
    return json.dumps(assignment, separators=(",", ":"))
