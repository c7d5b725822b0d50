"""Zygote process: the parent of all compute processes.

Run as ``python -m timonel.serving.isolation.zygote <descriptor>``. It has imported the runtime's
modules without initializing them, has one thread and only forks. A version thus loads without
imports, and its process shares the pages of the imported modules. The zygote ends when its
connection does, and its children with it: the kernel kills a process whose parent has died, even
one that hangs in a TensorFlow kernel.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from timonel.engines.local.processes import die_with_parent, name_process, reap
from timonel.engines.local.warm.inside import renew_random_state, restore_blas_threads
from timonel.serving.isolation.child import compute
from timonel.serving.isolation.zygote_requests import (
    MESSAGE_BYTES,
    ForkOrder,
    WarmOrders,
    environment,
)
from timonel.serving.memory import give_back
from timonel.serving.runtimes.base import Runtime

_LOG = logging.getLogger(__name__)
# Ctrl-C in a terminal and SIGTERM from a service manager go to every process of a server. The
# server process first answers requests in flight, and needs the other processes for that.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(descriptor: int) -> int:
    """Prepare the runtime, then fork on request until the connection ends."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    name_process("timonel warm")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    with socket.socket(fileno=descriptor) as control:
        control.set_inheritable(False)
        orders = WarmOrders(**json.loads(control.recv(MESSAGE_BYTES)))
        sys.path[:] = orders.path
        try:
            runtime = _prepared(orders.runtime)
        except Exception as error:  # noqa: BLE001 - reported to the server
            _LOG.exception("the runtime cannot be prepared")
            _send(control, {"refused": f"{type(error).__name__}: {error}"})
            return 1
        _send(control, {"ready": True})
        _Parent(control, runtime).serve()
    return 0


def _prepared(reference: str) -> Runtime:
    # Imports create almost no garbage.
    gc.disable()
    module, _, attribute = reference.partition(":")
    runtime: Runtime = getattr(importlib.import_module(module), attribute)()
    runtime.prepare()
    # Existing objects are shared by all children; a garbage collection that visited them would copy
    # every page.
    gc.collect()
    gc.freeze()
    gc.enable()
    give_back()
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - a count is all
    if threads > 1:
        raise RuntimeError(
            f"expected preparing runtime {runtime.name} to start no thread, got {threads - 1}: "
            "such a process cannot be forked; serve without isolation"
        )
    return runtime


class _Parent:
    """Loop that forks children and reports their exit statuses."""

    def __init__(self, control: socket.socket, runtime: Runtime) -> None:
        self._control = control
        self._runtime = runtime
        self._children: set[int] = set()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        while True:
            readable, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in readable:
                self._woken.recv(4096)
                self._collect()
            if self._control in readable and not self._answer():
                return

    def _answer(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        try:
            if not message:
                return False
            order: dict[str, Any] = json.loads(message)
            if "kill" in order:
                # Not reaped yet, so the PID still belongs to this child.
                if order["kill"] in self._children:
                    os.kill(order["kill"], signal.SIGKILL)
            else:
                self._fork(ForkOrder(**order), descriptors[0])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _fork(self, order: ForkOrder, descriptor: int) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _send(self._control, {"token": order.token, "refused": str(error.strerror)})
            return
        if pid == 0:
            self._become_child(order, descriptor, parent)
        self._children.add(pid)
        _send(self._control, {"token": order.token, "pid": pid})

    def _become_child(self, order: ForkOrder, descriptor: int, parent: int) -> NoReturn:
        code = 1
        try:
            die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._control, self._waker, self._woken):
                inherited.close()
            name_process(f"timonel {order.name}")
            faulthandler.enable()
            renew_random_state()
            _restore_environment()
            restore_blas_threads(os.environ)
            connection = socket.socket(fileno=descriptor)
            compute(
                connection,
                self._runtime,
                Path(order.folder),
                order.settings,
                order.threads,
                order.memory_limit,
            )
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not continue with the zygote's code
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
                sys.stdout.flush()
            # Skip destructors of libraries, which other processes have copies of.
            os._exit(code)

    def _collect(self) -> None:
        for pid, status in reap():
            self._children.discard(pid)
            _send(self._control, {"ended": pid, "status": status})


def _restore_environment() -> None:
    env = environment(os.environ, restored=True)
    os.environ.clear()
    os.environ.update(env)


def _send(control: socket.socket, content: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the server is gone, which the loop detects
        control.send(json.dumps(content).encode())


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
