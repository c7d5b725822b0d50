"""Environment variables by which manifests tell pods what they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TOKEN = "TIMONEL_JOB_TOKEN"  # noqa: S105 - a name
"""What a pod shows to the coordinator; from a Secret."""
COORDINATOR = "TIMONEL_COORDINATOR"
"""``host:port`` of the coordinator."""
POD_NAME = "TIMONEL_POD_NAME"
POD_HOST = "TIMONEL_POD_HOST"
"""Host name at which other pods of the job reach this one."""
ROLE = "TIMONEL_ROLE"
INDEX = "TIMONEL_INDEX"
WORK_DIR = "TIMONEL_WORK_DIR"
"""Folder for files of the pod; `/work` unless it is set."""


def work_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder for files of the pod."""
    return Path(environ.get(WORK_DIR, "/work"))
