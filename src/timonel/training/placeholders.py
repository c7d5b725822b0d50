r"""Cluster placeholders in a script's arguments, such as ``{worker_hosts}``. Pure.

Scripts written for TensorFlow 1 take their cluster as flags:

    timonel train old.py --strategy none --workers 2 --ps 1 -- \
        --ps_hosts {ps_hosts} --worker_hosts {worker_hosts} \
        --job_name {job_name} --task_index {task_index}

Such a script knows no chief: unless the arguments contain ``{chief_hosts}``, the chief is worker 0
and the workers count from 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NAMES = ("chief_hosts", "worker_hosts", "ps_hosts", "job_name", "task_index")
_PLACEHOLDER = re.compile(rf"\{{(\{{)?({'|'.join(NAMES)})(?(1)\}})\}}")


def fill(
    args: Sequence[str], tasks: Mapping[str, Sequence[str]], role: str, index: int
) -> list[str]:
    """Return ``args`` with placeholders replaced by the cluster's values.

    ``{{job_name}}`` gives ``{job_name}``. Other braces, as of JSON, are left alone.

    Args:
        args: Arguments of a script.
        tasks: ``host:port`` of every task, by role.
        role: The role of the receiving task.
        index: Its index within the role.
    """
    values = _values(tasks, role, index, has_chief=_asks_for_chief(args))

    def value(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        return f"{{{name}}}" if escaped else values[name]

    return [_PLACEHOLDER.sub(value, word) for word in args]


def _asks_for_chief(args: Sequence[str]) -> bool:
    return any(
        name == "chief_hosts" and not escaped
        for word in args
        for escaped, name in _PLACEHOLDER.findall(word)
    )


def _values(
    tasks: Mapping[str, Sequence[str]], role: str, index: int, *, has_chief: bool
) -> dict[str, str]:
    chiefs, workers = list(tasks.get("chief", ())), list(tasks.get("worker", ()))
    if not has_chief:
        if role == "worker":
            index += len(chiefs)
        role = "worker" if role == "chief" else role
        workers = chiefs + workers
    return {
        "chief_hosts": ",".join(chiefs),
        "worker_hosts": ",".join(workers),
        "ps_hosts": ",".join(tasks.get("ps", ())),
        "job_name": role,
        "task_index": str(index),
    }
