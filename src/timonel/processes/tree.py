"""Process trees of Linux: identity, descendants, orphans, and reliable killing.

PIDs are reused; a PID with its start time and boot ID identifies a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MARKER = "TIMONEL_SUPERVISOR"
"""Environment variable with the supervisor's identity, in every process of a job."""

REPLICA = "TIMONEL_REPLICA"
"""Environment variable with the name of a service's replica, in its processes."""

TASK_DIR = "TIMONEL_TASK_DIR"
"""Environment variable with the folder of a task, in its processes."""

MARKS = (MARKER, REPLICA, TASK_DIR)
"""Variables by which `marked` finds processes."""

RESERVED = "TIMONEL_RESERVED"
RESERVED_BYTES = 8192
"""Name and length of the variable that `mark_process` overwrites."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
# Indices into the result of `_stat`.
_STAT_STATE = 0
_STAT_PARENT = 1
_STAT_USER = 11
_STAT_SYSTEM = 12
_STAT_CHILDREN_USER = 13
_STAT_CHILDREN_SYSTEM = 14
_STAT_START = 19
_STAT_ENV_START = 47
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Identity:
    """Unique identity of a process."""

    pid: int
    start_ticks: int
    boot_id: str

    @property
    def is_alive(self) -> bool:
        """Whether the process exists and is not a zombie."""
        return identify(self.pid) == self

    def signal(self, number: int) -> bool:
        """Send a signal to this process; return whether it was alive."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # Checked after opening: from here on the descriptor cannot mean another process.
            if not self.is_alive:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def as_json(self) -> dict[str, Any]:
        """Return the identity as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Identity | None:
        """Parse the result of `as_json`; None if it is invalid."""
        if not isinstance(value, dict):
            return None
        try:
            return cls(int(value["pid"]), int(value["start_ticks"]), str(value["boot_id"]))
        except (KeyError, TypeError, ValueError):
            return None

    def __str__(self) -> str:
        return f"{self.pid}-{self.start_ticks}-{self.boot_id}"


def identify(pid: int) -> Identity | None:
    """Return the identity of a live process, else None.

    Zombies do not count as alive.
    """
    stat = _stat(pid)
    if stat is None or stat[_STAT_STATE] in "ZX":
        return None
    return Identity(pid, int(stat[_STAT_START]), _boot_id())


def own_identity() -> Identity:
    """Return the identity of this process."""
    found = identify(os.getpid())
    assert found is not None
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    stat = _stat(pid)
    return stat is not None and stat[_STAT_STATE] in "Tt"


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds, including all threads."""
    return _cpu_ticks(pid)[0] / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int, below: Collection[int]) -> tuple[float, float]:
    """Return the CPU time of a process, and that of its descendants, in seconds.

    A process that has ended counts once its parent has waited for it.
    """
    # Added up as integers: a rounding error would let a counter fall, which looks like a restart.
    own, children = _cpu_ticks(root)
    children += sum(sum(_cpu_ticks(pid)) for pid in below)
    ticks = os.sysconf("SC_CLK_TCK")
    return own / ticks, children / ticks


def _cpu_ticks(pid: int) -> tuple[int, int]:
    """Return the CPU time of a process, and of those that it has waited for, in clock ticks."""
    stat = _stat(pid)
    if stat is None:
        return 0, 0
    return (
        int(stat[_STAT_USER]) + int(stat[_STAT_SYSTEM]),
        int(stat[_STAT_CHILDREN_USER]) + int(stat[_STAT_CHILDREN_SYSTEM]),
    )


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies.

    Args:
        parent_pid: PID of the parent at the fork. If it has died since, the kernel will not signal,
            so this process exits here.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def lower_priority(niceness: int) -> None:
    """Lower the CPU priority of this process, also relative to other sessions.

    With ``sched_autogroup_enabled``, Linux groups processes by session, and niceness counts only
    within the group, so even the nicest process takes an equal share from a job's tasks. The group
    has a niceness of its own. Call it in the leader of a session.
    """
    os.nice(niceness)
    # Missing if the kernel does not group; not ours unless this process leads the session.
    with contextlib.suppress(OSError):
        if os.getsid(0) == os.getpid():
            Path("/proc/self/autogroup").write_text(str(niceness))


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that none can escape."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Set the name shown by ``ps`` and ``top`` (15 bytes)."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _LIBC.prctl(_PR_SET_NAME, buffer, 0, 0, 0)


def descendants(root: int, *, exclude: Collection[int] = ()) -> list[int]:
    """Return the PIDs of all processes below ``root``, without zombies.

    Args:
        root: PID of the ancestor, not included.
    """
    children: dict[int, list[int]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None and stat[_STAT_STATE] not in "ZX":
            children.setdefault(int(stat[_STAT_PARENT]), []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), []) if pid not in exclude]
        found.extend(below)
        waiting.extend(below)
    return found


def marked(token: str, *, inside: str | None = None) -> list[int]:
    """Return the PIDs of other processes that carry a supervisor's token.

    Args:
        token: Text of the supervisor's `Identity`.
        inside: A further ``NAME=value`` that the process must carry.
    """
    required = [f"{MARKER}={token}".encode()]
    if inside is not None:
        required.append(inside.encode())
    return [pid for pid in _pids() if pid != os.getpid() and _environment(pid).issuperset(required)]


def kill_all(find: Callable[[], Collection[int]], *, timeout_s: float = 5.0) -> bool:
    """Kill processes until ``find`` returns none; return whether that succeeded.

    Repeated because a process may fork between listing and killing. Does not reap dead children of
    this process: their waiter still needs their exit status.
    """
    deadline = time.monotonic() + timeout_s
    delay_s = 0.001
    while pids := find():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(delay_s)
        delay_s = min(delay_s * 2, 0.05)
    return True


def reap() -> Iterator[tuple[int, int]]:
    """Yield PID and wait status of each dead child, including adopted ones."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def mark_process(entries: Mapping[str, str]) -> None:
    """Show ``entries`` in ``/proc/self/environ``, in place of a reserved variable.

    A forked process that never executes a program shows its ancestor's initial environment. A
    zygote therefore starts with a long meaningless variable, which the processes it forks overwrite
    with their marks, so that `marked` finds them. Does nothing if there is no room.
    """
    stat = _stat(os.getpid())
    offset = _value_offset(Path("/proc/self/environ").read_bytes(), RESERVED)
    text = b"\0" + b"\0".join(f"{name}={value}".encode() for name, value in entries.items())
    if stat is not None and offset is not None and len(text) < RESERVED_BYTES:
        # Pad with zeros, or the remainder would become part of the last value.
        where = int(stat[_STAT_ENV_START]) + offset
        ctypes.memmove(where, text.ljust(RESERVED_BYTES, b"\0"), RESERVED_BYTES)


def _value_offset(shown: bytes, name: str) -> int | None:
    start = name.encode() + b"="
    if shown.startswith(start):
        return len(start)
    found = shown.find(b"\0" + start)
    return None if found < 0 else found + 1 + len(start)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir(_PROC) if entry.isdigit()]  # noqa: PTH208 - hot


def _stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the third (the state) on."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may contain blanks and parentheses.
    return text.rpartition(")")[2].split()


def _environment(pid: int) -> set[bytes]:
    try:
        return set((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
