"""Read a user's cluster in the form of ``TF_CONFIG``.

For example ``{"cluster": {"chief": ["a:2222"], "worker": ["b:2222"]}, "task": {"type": "worker",
"index": 0}}``, in a file or in that environment variable. The command line supplies fields missing
from ``task``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from timonel.engines import RoleName
from timonel.errors import NotFoundError, SpecError
from timonel.training.worker.task.cluster import Cluster

ENVIRONMENT = "env"
"""Value given instead of a file name to read the variable ``TF_CONFIG``."""
_ROLES: tuple[str, ...] = get_args(RoleName)
_ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


def read_cluster(
    place: str, task_type: str | None, task_index: int | None, environ: Mapping[str, str]
) -> Cluster:
    """Read the cluster at ``place`` and this process's position in it.

    Args:
        place: A file, or ``env``.
        task_type: This task's role, if the cluster does not say it.
        task_index: Its index within the role, if the cluster does not say it.
        environ: The environment.

    Raises:
        NotFoundError: The file or variable does not exist.
        SpecError: The content describes no cluster, or not this task.
    """
    content = _content(place, environ)
    tasks = _tasks(content, place)
    named = content.get("task")
    task = named if isinstance(named, Mapping) else {}
    role = task_type if task_type is not None else task.get("type")
    index = task_index if task_index is not None else task.get("index", 0)
    return _placed(tasks, role, index)


def _content(place: str, environ: Mapping[str, str]) -> dict[str, Any]:
    if place == ENVIRONMENT:
        text, where = environ.get("TF_CONFIG"), "the environment variable TF_CONFIG"
    else:
        path = Path(place).expanduser()
        text, where = (path.read_text() if path.is_file() else None), f"a file {path}"
    if text is None:
        raise NotFoundError(
            f"expected a cluster in {where}, found none",
            hint='in the form of TF_CONFIG: {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}',
        )
    try:
        content = json.loads(text)
    except ValueError as error:
        raise SpecError(f"expected JSON in {place}, got something else ({error})") from None
    if not isinstance(content, dict):
        raise SpecError(f"expected an object with a cluster in {place}, got {text[:80]!r}")
    return content


def _tasks(content: Mapping[str, Any], place: str) -> dict[str, tuple[str, ...]]:
    cluster = content.get("cluster")
    if not isinstance(cluster, dict) or not cluster:
        raise SpecError(f"expected roles and their addresses under 'cluster' in {place}, got none")
    seen: set[str] = set()
    for role, addresses in cluster.items():
        if role not in _ROLES:
            raise SpecError(f"expected roles among {', '.join(_ROLES)} in {place}, got {role!r}")
        if not isinstance(addresses, list) or not addresses:
            raise SpecError(f"expected a list of addresses for {role} in {place}")
        for address in addresses:
            if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
                raise SpecError(f"expected addresses host:port for {role}, got {address!r}")
            if address in seen:
                raise SpecError(f"expected each address once in {place}, got {address} twice")
            seen.add(address)
    if "chief" not in cluster and "worker" not in cluster:
        raise SpecError(f"expected a chief or a worker in {place}, got {', '.join(cluster)}")
    if len(cluster.get("chief", ())) > 1:
        raise SpecError(f"expected one chief in {place}, got {len(cluster['chief'])}")
    return {role: tuple(addresses) for role, addresses in cluster.items()}


def _placed(tasks: Mapping[str, tuple[str, ...]], role: Any, index: Any) -> Cluster:
    if role is None:
        raise SpecError(
            "expected to be told which task of the cluster this is, got no task",
            hint="give --task-type and --task-index, or 'task' in the cluster",
        )
    # The other tasks must not wait for an evaluator, which joins no cluster.
    cluster = {name: found for name, found in tasks.items() if name != "evaluator"}
    if role != "evaluator" and role not in cluster:
        raise SpecError(
            f"expected a task type among {', '.join((*cluster, 'evaluator'))}, got {role!r}"
        )
    count = len(tasks.get(role, ("",)))
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise SpecError(f"expected a task index from 0 to {count - 1} for {role}, got {index!r}")
    return Cluster(cluster, role, index)
