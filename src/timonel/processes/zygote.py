"""Zygotes: what a process that imports once, and the children that it forks, must observe.

`timonel.processes.zygote_process` is the process, `timonel.processes.zygote_client` finds it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import logging
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from timonel.processes.tree import RESERVED, RESERVED_BYTES

MESSAGE_BYTES = 1 << 17
BACKLOG = 128
_logger = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("3i")
# Read by libraries when they are imported or loaded.
_PREFIXES = (
    *("ABSL_", "CUDA_", "GLIBC_", "GRPC_", "JAX_", "JE_ARROW_", "KERAS_", "KMP_", "LC_", "LD_"),
    *("MALLOC_", "MKL_", "MPL", "NUMEXPR_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTHON", "TF_"),
    "XLA_",
)
_NAMES = frozenset({"HOME", "LANG", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV"})
# The cluster description differs by task and is read when a cluster is created.
_PER_TASK = frozenset({"TF_CONFIG"})
_T = TypeVar("_T")
_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


class ZygoteError(Exception):
    """A zygote cannot fork or is gone. The message gives the reason."""


class ForkedChild:
    """Child process requested from a zygote. Owns its connection.

    One thread waits; `kill` and `close` may be called from any.

    Args:
        answers: Connection to the zygote, to which the request was sent.
    """

    def __init__(self, answers: socket.socket) -> None:
        self.pid: int | None = None
        self._connection = answers
        self._pidfd: int | None = None
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable with the next answer."""
        return self._connection.fileno()

    def wait_for_pid(self, timeout_s: float | None = None) -> int | None:
        """Return the child's PID; None after the timeout."""
        if self.pid is None and (answer := self._receive(timeout_s)) is not None:
            if "refused" in answer:
                raise ZygoteError(answer["refused"])
            self.pid = int(answer["pid"])
        return self.pid

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the child's wait status once it has ended; None after the timeout."""
        answer = self._receive(timeout_s)
        return None if answer is None else int(answer["status"])

    def kill(self) -> None:
        """Kill the child unless it has ended."""
        with self._lock:
            if self._pidfd is not None:
                try:
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                except ProcessLookupError:
                    return

    def close(self) -> None:
        """Close the connection; the child is left alone. Idempotent."""
        with self._lock:
            self._connection.close()
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None

    def _receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        if not poller.poll(None if timeout_s is None else 1000 * timeout_s):
            return None
        try:
            message, descriptors, _, _ = socket.recv_fds(
                self._connection, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise ZygoteError(f"the zygote is gone ({error.strerror})") from error
        if not message:
            raise ZygoteError("the zygote ended before it answered")
        if descriptors:
            self._pidfd = descriptors[0]
        answer: dict[str, Any] = json.loads(message)
        return answer


def single_threaded_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with settings that keep imports from starting threads.

    A process with several threads cannot fork safely.
    """
    arrow = env.get("JE_ARROW_MALLOC_CONF")
    return {
        **env,
        # numpy's linear algebra starts one thread per CPU when it is loaded,
        "OPENBLAS_NUM_THREADS": "1",
        # and pyarrow's allocator a background thread that frees memory.
        "JE_ARROW_MALLOC_CONF": ",".join(filter(None, [arrow, "background_thread:false"])),
    }


def import_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may affect imports."""
    return {
        name: value
        for name, value in env.items()
        if (name.startswith(_PREFIXES) or name in _NAMES) and name not in _PER_TASK
    }


def zygote_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that imports for tasks with ``env``.

    It has only the variables that may affect imports, so that it serves all tasks for which these
    are alike. Tasks get all of ``env``, with its own values.
    """
    shared = single_threaded_environment(import_environment(env))
    return {**shared, RESERVED: " " * RESERVED_BYTES}


def import_modules(names: Iterable[str]) -> str | None:
    """Import modules; return why that failed, or None."""
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # whatever it is, tasks then import by themselves
            _logger.exception("cannot import %s", name)
            return f"importing {name} failed: {type(error).__name__}: {error}"
    return None


def is_same_user(connection: socket.socket) -> bool:
    """Whether the peer of a connection belongs to this user."""
    return _peer(connection)[1] == os.getuid()


def is_stopped(connection: socket.socket) -> bool:
    """Whether the peer of a connection is stopped, as by SIGSTOP, and cannot answer."""
    try:
        found = Path(f"/proc/{_peer(connection)[0]}/stat").read_text()
    except OSError:
        return False
    return found.rpartition(")")[2].split()[0] in {"T", "t"}


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return process and user of the peer: of the process that listened last."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def extra_threads() -> str | None:
    """Describe the threads that make forking unsafe; None if there are none."""
    extra = len(os.listdir("/proc/self/task")) - 1  # noqa: PTH208 - only a count is needed
    return f"its imports started {extra} thread{'s' * (extra > 1)}" if extra else None


def preload(load: Callable[[], _T]) -> _T:
    """Run ``load``, which imports modules, and let children share its objects."""
    # Imports create almost no garbage, and collecting it takes a tenth of the import time of
    # TensorFlow.
    gc.disable()
    result = load()
    # Children share all current objects; a collection that visited them would copy every page.
    gc.collect()
    gc.freeze()
    gc.enable()
    return result


def renew_random_state() -> None:
    """Reseed random state that a child would otherwise share with its zygote."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def restore_blas_threads(env: Mapping[str, str]) -> None:
    """Restore the thread count of OpenBLAS, which was loaded with one."""
    requested = env.get("OPENBLAS_NUM_THREADS") or env.get("OMP_NUM_THREADS") or ""
    is_set = requested.isdigit() and int(requested)
    count = int(requested) if is_set else len(os.sched_getaffinity(0))
    for path in _loaded_libraries("openblas"):
        library = ctypes.CDLL(path)
        for name in _OPENBLAS_SETTERS:
            if hasattr(library, name):
                getattr(library, name)(count)
                break


def _loaded_libraries(part: str) -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    # Address, permissions, offset, device, inode, then the path, which may contain blanks.
    paths = {fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) > 5}
    return {path for path in paths if part in Path(path).name and ".so" in path}


def send(connection: socket.socket, answer: dict[str, Any], *descriptors: int) -> None:
    """Send an answer to a client of a zygote, unless it is gone."""
    try:
        socket.send_fds(connection, [json.dumps(answer).encode()], descriptors)
    except OSError:
        return  # nobody waits for it any more
