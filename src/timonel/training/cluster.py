"""A job's cluster and one task's position in it.

An engine describes it in the variable ``TIMONEL_CLUSTER``. Users describe their own in the form of
``TF_CONFIG``, in a file or in that variable; the command line supplies fields missing from
``task``:

    {"cluster": {"chief": ["a:2222"], "worker": ["b:2222"]}, "task": {"type": "worker", "index": 0}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from timonel.engines import RoleName
from timonel.errors import NotFoundError, SpecError

ENVIRONMENT_VARIABLE = "TIMONEL_CLUSTER"
FROM_ENVIRONMENT = "env"
"""Value instead of a file name to read the variable ``TF_CONFIG``."""
_ROLES: tuple[str, ...] = get_args(RoleName)
_TRAINING_ROLES = ("chief", "worker")
_ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


@dataclass(frozen=True)
class Cluster:
    """The tasks of a job and this process's position among them."""

    tasks: Mapping[str, Sequence[str]]  # ``host:port`` of every task, by role
    role: str
    index: int  # within the role
    generation: int = 1  # number of the job's current start
    reason: str | None = None  # why the previous generation ended, if known

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

    def with_chief(self) -> Cluster:
        """Return the cluster with worker 0 as its chief, and the other workers renumbered."""
        # Parameter servers need a chief, which the field's articles leave out of ``TF_CONFIG``.
        if self.tasks.get("chief"):
            return self
        first, *rest = self.tasks["worker"]
        if not rest:
            raise SpecError(
                "The cluster has parameter servers and one worker, but no chief",
                hint='add a task of its own: "chief": ["host:port"]',
            )
        tasks = {"chief": (first,), **self.tasks, "worker": tuple(rest)}
        role, index = self.role, self.index
        if role == "worker":
            role, index = ("worker", index - 1) if index else ("chief", 0)
        return replace(self, tasks=tasks, role=role, index=index)

    def tf_config(self) -> dict[str, Any]:
        """Return the content of ``TF_CONFIG``."""
        return {
            "cluster": {role: list(addresses) for role, addresses in self.tasks.items()},
            "task": {"type": self.role, "index": self.index},
        }


def parse_cluster(text: str) -> Cluster:
    """Parse the cluster from the value of ``TIMONEL_CLUSTER``."""
    try:
        value = json.loads(text)
        tasks = {str(role): tuple(map(str, found)) for role, found in value["cluster"].items()}
        role, index = str(value["task"]["type"]), int(value["task"]["index"])
        if role != "evaluator":  # it joins no cluster, as the others would wait for it
            tasks[role][index]
        return Cluster(
            tasks, role, index, int(value.get("generation", 1)), value.get("reason") or None
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise SpecError(
            f"{ENVIRONMENT_VARIABLE} holds no cluster with a task: {text!r}",
            hint="an engine starts this module; use 'timonel train'",
        ) from error


def read_cluster(
    source: str, task_type: str | None, task_index: int | None, environ: Mapping[str, str]
) -> Cluster:
    """Read a user's cluster from a file or ``env``, and this process's position in it."""
    content = _read_document(source, environ)
    tasks = _check_tasks(content.get("cluster"), source)
    named = content.get("task")
    task = named if isinstance(named, Mapping) else {}
    role = task_type if task_type is not None else task.get("type")
    index = task_index if task_index is not None else task.get("index", 0)
    return _position(tasks, role, index)


def _read_document(source: str, environ: Mapping[str, str]) -> dict[str, Any]:
    if source == FROM_ENVIRONMENT:
        text, where = environ.get("TF_CONFIG"), "the environment variable TF_CONFIG"
    else:
        path = Path(source).expanduser()
        text, where = (path.read_text() if path.is_file() else None), f"cluster file {path}"
    if text is None:
        raise NotFoundError(
            f"{where} does not exist",
            hint="create it in the format of TF_CONFIG: "
            '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}',
        )
    try:
        content = json.loads(text)
    except ValueError as error:
        raise SpecError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise SpecError(f"{where} must hold a JSON object with 'cluster', got {text[:80]!r}")
    return content


def _check_tasks(cluster: Any, source: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(cluster, dict) or not cluster:
        raise SpecError(f"{source} needs roles with their addresses under 'cluster'")
    seen: set[str] = set()
    for role, addresses in cluster.items():
        if role not in _ROLES:
            raise SpecError(f"Unknown role {role!r} in {source}. Use {', '.join(_ROLES)}")
        if not isinstance(addresses, list) or not addresses:
            raise SpecError(f"{source} needs a list of addresses for {role}")
        for address in addresses:
            if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
                raise SpecError(f"Addresses must be host:port; {source} has {address!r} for {role}")
            if address in seen:
                raise SpecError(f"{source} has the address {address} twice")
            seen.add(address)
    if not cluster.keys() & set(_TRAINING_ROLES):
        raise SpecError(f"{source} needs a chief or a worker, got {', '.join(cluster)}")
    if len(cluster.get("chief", ())) > 1:
        raise SpecError(f"{source} must have one chief, got {len(cluster['chief'])}")
    return {role: tuple(addresses) for role, addresses in cluster.items()}


def _position(tasks: Mapping[str, tuple[str, ...]], role: Any, index: Any) -> Cluster:
    if role is None:
        raise SpecError(
            "The cluster does not say which task this is",
            hint="give --task-type and --task-index, or 'task' in the cluster",
        )
    # The other tasks must not wait for an evaluator, which joins no cluster.
    cluster = {name: addresses for name, addresses in tasks.items() if name != "evaluator"}
    if role != "evaluator" and role not in cluster:
        raise SpecError(f"The task type must be {', '.join((*cluster, 'evaluator'))}, got {role!r}")
    count = len(tasks.get(role, ("",)))
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise SpecError(f"The task index of {role} must be from 0 to {count - 1}, got {index!r}")
    return Cluster(cluster, role, index)


def _host(address: str) -> str:
    return address.rpartition(":")[0]
