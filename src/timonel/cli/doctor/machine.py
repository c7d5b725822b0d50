"""Checks of the machine: cores, memory, disk, ports, limits."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from timonel.cli.doctor.check import Check, Verdict
from timonel.errors import FormatError, TimonelError
from timonel.training.worker.strategy.devices import usable_cores
from timonel.units import format_bytes

AREA = "machine"
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
        hint = "enough for two small workers; larger models need more"
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
        found = f"none yet, the first command makes {workspace or '.timonel here'}"
    if not os.access(root, os.W_OK):
        hint = "choose another place with --workspace"
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
    wanted: tuple[tuple[str, int], ...] = (("REST", 8501), ("gRPC", 8500)),
) -> Iterator[Check]:
    """Check whether the default ports of ``timonel serve`` are free."""
    for name, port in wanted:
        if is_free(port):
            yield Check(AREA, f"port {port}", Verdict.OK, f"free for {name}")
        else:
            hint = f"see 'timonel servers', or give serve another: --{name.lower()}-port 0"
            yield Check(AREA, f"port {port}", Verdict.WARN, f"in use, wanted for {name}", hint)


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
