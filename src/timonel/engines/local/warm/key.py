"""Key of a warm parent: a hash of what tasks inherit.

A forked task inherits modules, variables read at import, limits and control groups from its parent.
A parent serves only tasks that would have had the same values without it.
`timonel.engines.local.warm.stamps` checks whether its modules are still those on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Read by libraries when they are imported or loaded.
_PREFIXES = (
    "ABSL_",
    "CUDA_",
    "GLIBC_",
    "GRPC_",
    "JAX_",
    "JE_ARROW_",
    "KERAS_",
    "KMP_",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "MPL",
    "NUMEXPR_",
    "NVIDIA_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "TF_",
    "XLA_",
)
_NAMES = frozenset({"HOME", "LANG", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV"})
# The cluster description differs by task and is read when a cluster is created.
_PER_TASK = frozenset({"TF_CONFIG"})
_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")
_LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))


def warm_key(preload: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the key of the parent for these modules and environment."""
    parts = {
        "python": [sys.executable, sys.version, sys.prefix],
        "preload": list(preload),
        "environment": import_environment(env),
        "inherited": _inherited(),
    }
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def import_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may affect imports."""
    return {
        name: value
        for name, value in env.items()
        if (name.startswith(_PREFIXES) or name in _NAMES) and name not in _PER_TASK
    }


def _inherited() -> dict[str, object]:
    """Return inherited properties that a child cannot or should not change."""
    return {
        "user": [os.getuid(), os.getgid(), sorted(os.getgroups())],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in _LIMITS],
        "processors": sorted(os.sched_getaffinity(0)),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "groups": Path("/proc/self/cgroup").read_text(),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
        "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES],  # noqa: PTH115 - not paths
    }
