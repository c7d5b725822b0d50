"""The environments of a job's processes: plain functions of the specification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from timonel.engines.cluster import Assignment, encode
from timonel.engines.local.processes import MARKER, RESERVED
from timonel.engines.spec import JobSpec, RoleSpec

CLUSTER = "TIMONEL_CLUSTER"
JOB_DIR = "TIMONEL_JOB_DIR"
TASK_DIR = "TIMONEL_TASK_DIR"
OUTCOME = "TIMONEL_JOB_OUTCOME"

_OF_ONE_PROCESS = frozenset({CLUSTER, JOB_DIR, TASK_DIR, OUTCOME, MARKER, RESERVED})


def inherited(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a new job inherits: all but what an outer job gave to this process alone."""
    return {name: value for name, value in environ.items() if name not in _OF_ONE_PROCESS}


def job_environment(spec: JobSpec, token: str) -> dict[str, str]:
    """Return what every process of a job gets, commands beside it too.

    Args:
        spec: The job.
        token: The supervisor's identity, by which leftovers are recognised.
    """
    return {**inherited(), **spec.env, JOB_DIR: spec.job_dir, MARKER: token}


def role_environment(spec: JobSpec, role: RoleSpec) -> dict[str, str]:
    """Return what all tasks of a role have in common, and a warm parent for them too."""
    # Output goes to a file, which Python would fill block by block; logs are to be followed.
    return {"PYTHONUNBUFFERED": "1", **inherited(), **spec.env, **role.env, JOB_DIR: spec.job_dir}


def task_environment(
    base: Mapping[str, str], task_dir: Path, assignment: Assignment, token: str
) -> dict[str, str]:
    """Return what one task gets in one generation.

    Args:
        base: The environment of its role.
        task_dir: Its folder.
        assignment: Its place in the cluster.
        token: The supervisor's identity.
    """
    own = {CLUSTER: encode(assignment), TASK_DIR: str(task_dir), MARKER: token}
    return {**base, **own}
