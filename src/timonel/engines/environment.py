"""Environments of a job's processes, from the specification and this process's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from timonel.engines.cluster import TaskAssignment, encode
from timonel.engines.spec import JobSpec, RoleSpec
from timonel.processes.tree import MARKER, RESERVED, TASK_DIR

CLUSTER = "TIMONEL_CLUSTER"
JOB_DIR = "TIMONEL_JOB_DIR"
OUTCOME = "TIMONEL_JOB_OUTCOME"

_OF_ONE_PROCESS = frozenset({CLUSTER, JOB_DIR, TASK_DIR, OUTCOME, MARKER, RESERVED})


def inherited(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the inherited environment, without an outer job's variables."""
    return {name: value for name, value in environ.items() if name not in _OF_ONE_PROCESS}


def job_environment(spec: JobSpec, job_dir: Path, token: str) -> dict[str, str]:
    """Return the environment of all processes of a job, including its commands.

    Args:
        token: Identity of the supervisor, which marks its processes.
    """
    return {**inherited(), **spec.env, JOB_DIR: str(job_dir), MARKER: token}


def role_environment(spec: JobSpec, role: RoleSpec, job_dir: Path) -> dict[str, str]:
    """Return the environment of a role's tasks and their zygote."""
    # Unbuffered: output goes to a file, which Python buffers in blocks, and users follow the logs.
    fixed = {"PYTHONUNBUFFERED": "1", **inherited()}
    return {**fixed, **spec.env, **role.env, JOB_DIR: str(job_dir)}


def task_environment(
    base: Mapping[str, str], task_dir: Path, assignment: TaskAssignment, token: str
) -> dict[str, str]:
    """Return the environment of a task in a generation."""
    own = {CLUSTER: encode(assignment), TASK_DIR: str(task_dir), MARKER: token}
    return {**base, **own}
