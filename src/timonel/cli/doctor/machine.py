"""Checks of the machine and the installed packages, without heavy imports."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import socket
from collections.abc import Iterator
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from timonel._version import __version__
from timonel.checks import Check, Verdict
from timonel.errors import FormatError, TimonelError
from timonel.processes.cores import usable_cores
from timonel.units import format_bytes

AREA = "machine"
PACKAGES = "packages"
GIB = 1024**3
_CGROUP = Path("/sys/fs/cgroup")


def cores(root: Path = _CGROUP) -> Check:
    """Compare the machine's cores with those that this process may use."""
    present = os.cpu_count() or 1
    usable = usable_cores(root)
    found = f"{usable:g} of {present} usable"
    if usable < 2:
        return Check(
            AREA,
            "cores",
            Verdict.WARN,
            found,
            "two workers share one core: give the container more (docker run --cpus 2)",
        )
    return Check(AREA, "cores", Verdict.OK, found)


def memory(root: Path = _CGROUP) -> Check:
    """Check whether enough memory is free for processes that each load TensorFlow."""
    import psutil

    total = psutil.virtual_memory().total
    limit = memory_limit(root, total)
    free = min(psutil.virtual_memory().available, limit)
    found = f"{format_bytes(free)} free of {format_bytes(limit)}"
    if limit < total:
        found += f" (limit; the machine has {format_bytes(total)})"
    if free < GIB:
        hint = "each worker takes about 0.5 GB: free memory, or train with --workers 1"
        return Check(AREA, "memory", Verdict.FAIL, found, hint)
    if free < 3 * GIB:
        hint = "this is enough for two small workers; larger models need more"
        return Check(AREA, "memory", Verdict.WARN, found, hint)
    return Check(AREA, "memory", Verdict.OK, found)


def memory_limit(root: Path, total: int) -> int:
    """Return the control group's memory limit in bytes, at most ``total``."""
    try:
        return min(total, int((root / "memory.max").read_text()))
    except (OSError, ValueError):
        return total


def disk(workspace: str | None) -> Iterator[Check]:
    """Check the workspace's format, write permission and free disk space."""
    from timonel.storage import find_workspace

    try:
        root = find_workspace(workspace, create=False).root
        found = str(root)
    except FormatError as error:
        yield Check(AREA, "workspace", Verdict.FAIL, error.message, error.hint)
        return
    except TimonelError:
        root = Path(workspace).absolute().parent if workspace else Path.cwd()
        found = f"none yet; the first command creates {workspace or '.timonel here'}"
    if not os.access(root, os.W_OK):
        hint = "choose another folder with --workspace"
        yield Check(AREA, "workspace", Verdict.FAIL, f"{root} cannot be written", hint)
        return
    yield Check(AREA, "workspace", Verdict.OK, found)
    yield _space(root)


def _space(root: Path) -> Check:
    free = shutil.disk_usage(root).free
    found = f"{format_bytes(free)} free"
    hint = "checkpoints and versions are copies of the model: free some space"
    if free < 200e6:
        return Check(AREA, "disk", Verdict.FAIL, found, hint)
    return Check(AREA, "disk", Verdict.WARN if free < 2e9 else Verdict.OK, found, hint)


def open_files() -> Check:
    """Check the limit on open files, which busy servers reach first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        hint = f"a busy server needs more: ulimit -n {min(hard, 65536)}"
        return Check(AREA, "open files", Verdict.WARN, f"at most {soft}", hint)
    return Check(AREA, "open files", Verdict.OK, f"at most {soft}")


def ports(
    defaults: tuple[tuple[str, int], ...] = (("REST", 8501), ("gRPC", 8500)),
) -> Iterator[Check]:
    """Check whether the default ports of ``timonel serve`` are free."""
    for name, port in defaults:
        if is_free(port):
            yield Check(AREA, f"port {port}", Verdict.OK, f"free for {name}")
        else:
            hint = f"see 'timonel servers', or give serve another: --{name.lower()}-port 0"
            yield Check(AREA, f"port {port}", Verdict.WARN, f"in use; {name} needs it", hint)


def shared_memory(mount: Path) -> Check:
    """Check the memory-backed file system, from which data is read fastest."""
    try:
        free = shutil.disk_usage(mount).free
    except OSError:
        return Check("speed", "tmpfs", Verdict.NOTE, f"no {mount}")
    hint = "too small for data; docker run --shm-size 1g makes it larger" if free < 1e9 else None
    verdict = Verdict.NOTE if hint else Verdict.OK
    return Check("speed", "tmpfs", verdict, f"{format_bytes(free)} in {mount}", hint)


def is_free(port: int) -> bool:
    """Tell whether nothing listens on a port of this machine."""
    with socket.socket() as trial:
        # As servers do: connections that linger after a server's end do not block the port.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


EXTRAS = (
    ("legacy-keras", "tf_keras", "scripts written for Keras 2"),
    ("mlflow", "mlflow", "runs mirrored to MLflow, for 'mlflow ui'"),
    ("wandb", "wandb", "runs mirrored to Weights & Biases, with '--wandb'"),
    ("mpi", "mpi4py", "tasks that mpirun starts, with '--launcher mpi'"),
    ("s3", "s3fs", "workspaces, datasets, models and checkpoints in s3:// buckets"),
    ("gcs", "gcsfs", "workspaces, datasets, models and checkpoints in gs:// buckets"),
)
"""Extras: name, module that it installs, and purpose."""


def python() -> Check:
    """Report the versions of timonel and Python."""
    found = f"timonel {__version__}, Python {platform.python_version()}"
    return Check(PACKAGES, "python", Verdict.OK, found)


def kernel() -> Check:
    """Check the operating system: jobs and the warm start need Linux."""
    found = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() != "Linux":
        return Check(PACKAGES, "system", Verdict.FAIL, found, "timonel runs on Linux")
    return Check(PACKAGES, "system", Verdict.OK, found)


def extras() -> Iterator[Check]:
    """Report which extras are installed, and what the others are for."""
    for extra, module, purpose in EXTRAS:
        if importlib.util.find_spec(module) is not None:
            yield Check(PACKAGES, f"extra {extra}", Verdict.OK, f"{purpose} ({_version(module)})")
        else:
            hint = f"pip install 'timonel[{extra}]'"
            yield Check(PACKAGES, f"extra {extra}", Verdict.NOTE, f"not installed: {purpose}", hint)


def event_loop() -> Check:
    """Check whether the server's fast event loop and HTTP parser are installed."""
    missing = [
        name for name in ("uvloop", "httptools", "orjson") if not importlib.util.find_spec(name)
    ]
    if missing:
        hint = f"pip install {' '.join(missing)}"
        found = f"the server runs without {', '.join(missing)}"
        return Check("speed", "event loop", Verdict.NOTE, found, hint)
    return Check("speed", "event loop", Verdict.OK, "uvloop, httptools and orjson")


def json_reader() -> Check:
    """Check whether the server's parser of large JSON arrays is compiled."""
    package = files("timonel").joinpath("serving", "codec")
    if any(
        each.name.startswith("_numbers") and each.name.endswith(".so") for each in package.iterdir()
    ):
        return Check("speed", "JSON reader", Verdict.OK, "compiled")
    found = "not compiled: the server reads large JSON requests several times as slowly"
    hint = "install a C compiler and Python's headers, then install timonel again"
    return Check("speed", "JSON reader", Verdict.NOTE, found, hint)


def _version(module: str) -> str:
    names = metadata.packages_distributions().get(module, [module])
    # Several distributions may provide the module, such as mlflow and mlflow-skinny.
    name = next((each for each in names if each.replace("-", "_") == module), names[0])
    return f"{name} {metadata.version(name)}"
