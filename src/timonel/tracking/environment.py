"""Recorded facts about machine and code: an allowlist, never the whole environment."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timonel.tracking.redaction import redact_text

_logger = logging.getLogger(__name__)

PACKAGES = (
    "timonel", "tensorflow", "tf-keras", "keras", "numpy", "protobuf", "ml-dtypes", "pillow",
    "pyarrow", "scikit-learn", "mlflow", "fsspec", "grpcio", "pydantic",
)  # fmt: skip
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "KERAS_BACKEND", "OMP_NUM_THREADS", "TF_CUDNN_DETERMINISTIC",
    "TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS", "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS",
    "TF_USE_LEGACY_KERAS", "TF_XLA_FLAGS",
)  # fmt: skip
_GIT_TIMEOUT_S = 3.0


def environment(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return versions, platform and the few variables that can affect a result.

    Args:
        variables: The environment variables to pick from; those of this process by default.
    """
    variables = os.environ if variables is None else variables
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "host": socket.gethostname(),
        "cpus": len(os.sched_getaffinity(0)),
        "packages": _versions(),
        "variables": {
            name: redact_text(variables[name]) for name in VARIABLES if name in variables
        },
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit, dirty flag, branch and remote of ``folder``'s git repository.

    Returns:
        None without git, a repository or a commit, or if git does not answer in time.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        # None: git timed out, which is not the same as clean.
        "dirty": None if changes is None else bool(changes),
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD") or None,
        "remote": redact_text(_git(folder, "remote", "get-url", "origin") or "") or None,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            # No optional locks: reading must not disturb a concurrent commit.
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],  # noqa: S607 - the user's git
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _logger.debug("git %s: %s", arguments[0], error)
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def this_process() -> dict[str, Any]:
    """Return values that identify this process on this machine.

    No earlier or later process has the same values.
    """
    return {
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pid": os.getpid(),
        "start": _start_ticks(os.getpid()),
    }


def is_gone(process: Mapping[str, Any]) -> bool:
    """Return whether a process described by `this_process` has ended; False if unknown."""
    try:
        pid, start = int(process["pid"]), process["start"]
        if process["host"] != socket.gethostname() or start is None:
            return False
        return bool(process["boot"] != _boot_id() or _start_ticks(pid) != start)
    except (KeyError, TypeError, ValueError):
        return False


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return None
    # The command's name, in parentheses, may contain anything; fields 3 to 52 follow the last ")".
    return int(stat.rpartition(")")[2].split()[19])


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
