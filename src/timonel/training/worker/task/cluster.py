"""The cluster as a task sees it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.errors import SpecError

ENVIRONMENT_VARIABLE = "TIMONEL_CLUSTER"
_TRAINING_ROLES = ("chief", "worker")
_OUTSIDE = frozenset({"evaluator"})
"""Roles outside every cluster, as others would wait for them."""


@dataclass(frozen=True)
class Cluster:
    """The tasks of a job and this process's position among them.

    Attributes:
        tasks: ``host:port`` of every task, by role.
        role: This task's role.
        index: Its index within the role.
        generation: Number of the job's current start, counting from 1.
        reason: Why the previous generation ended, if known.
    """

    tasks: Mapping[str, Sequence[str]]
    role: str
    index: int
    generation: int = 1
    reason: str | None = None

    @property
    def task_id(self) -> str:
        """The task's name within its job, such as ``worker-1``."""
        return f"{self.role}-{self.index}"

    @property
    def size(self) -> int:
        """Number of tasks in the cluster."""
        return sum(len(addresses) for addresses in self.tasks.values())

    @property
    def trainers(self) -> tuple[str, ...]:
        """Addresses of the training tasks, in the order of their rank."""
        return tuple(address for role in _TRAINING_ROLES for address in self.tasks.get(role, ()))

    @property
    def rank(self) -> int:
        """This task's rank among the training tasks; rank 0 leads."""
        before = len(self.tasks.get("chief", ())) if self.role == "worker" else 0
        return before + self.index

    @property
    def is_chief(self) -> bool:
        """Whether this task leads: it reports, saves and exports."""
        return (self.role, self.index) == self.leader

    @property
    def leader(self) -> tuple[str, int]:
        """Role and index of the task of rank 0."""
        return ("chief" if self.tasks.get("chief") else "worker"), 0

    @property
    def neighbours(self) -> tuple[int, int]:
        """This task's index among its host's training tasks, and their number."""
        host = _host(self.trainers[self.rank])
        here = [rank for rank, address in enumerate(self.trainers) if _host(address) == host]
        return here.index(self.rank), len(here)

    def tf_config(self) -> dict[str, Any]:
        """Return the content of ``TF_CONFIG``."""
        return {
            "cluster": {role: list(addresses) for role, addresses in self.tasks.items()},
            "task": {"type": self.role, "index": self.index},
        }


def parse_cluster(text: str) -> Cluster:
    """Parse the cluster from the value of ``TIMONEL_CLUSTER``.

    Raises:
        SpecError: The text does not have the expected structure.
    """
    try:
        value = json.loads(text)
        tasks = {str(role): tuple(map(str, found)) for role, found in value["cluster"].items()}
        role, index = str(value["task"]["type"]), int(value["task"]["index"])
        if role not in _OUTSIDE:
            tasks[role][index]
        return Cluster(
            tasks, role, index, int(value.get("generation", 1)), value.get("reason") or None
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise SpecError(
            f"expected {ENVIRONMENT_VARIABLE} with a cluster and a task in it, got {text!r}",
            hint="this module is started by an engine; use 'timonel train'",
        ) from error


def _host(address: str) -> str:
    return address.rpartition(":")[0]
