"""Zygote of a server: ``python -m timonel.serving.isolation.zygote <descriptor>``.

It imports the runtime's modules without initializing them, then forks a compute process per
version, which starts without imports and shares pages with the others. Compute processes end with
it, and it ends with the server.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import logging
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from timonel.processes.tree import die_with_parent, name_process
from timonel.processes.zygote import (
    MESSAGE_BYTES,
    Zygote,
    extra_threads,
    preload,
    renew_random_state,
    restore_blas_threads,
)
from timonel.serving.isolation.child import compute
from timonel.serving.memory import give_back
from timonel.serving.runtimes.base import Runtime
from timonel.serving.settings import RuntimeSettings

_LOG = logging.getLogger(__name__)
# A service manager or a terminal sends these to all processes: the server still has requests in
# flight, and needs the other processes for that.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ComputeZygote(Zygote):
    """Forks compute processes until the connection to the server ends.

    Args:
        control: Connection to the server.
        runtime: Loads and computes; already prepared.
        environment: Values of variables of compute processes; None: unset.
    """

    def __init__(
        self, control: socket.socket, runtime: Runtime, environment: dict[str, str | None]
    ) -> None:
        super().__init__()
        self._control = control
        self._runtime = runtime
        self._environment = environment
        self._pid = os.getpid()
        self._is_over = False

    def serve(self) -> None:
        """Serve until the connection ends."""
        self.loop.watch(self._control.fileno(), self._receive)
        while not self._is_over:
            if self.loop.wait(None):
                self.collect()

    def run_child(self, request: dict[str, Any], connection: socket.socket) -> NoReturn:
        """Run a compute process."""
        code = 1
        try:
            die_with_parent(self._pid)
            self._control.close()
            name_process(f"timonel {request['name']}")
            faulthandler.enable()
            renew_random_state()
            for name, value in self._environment.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            restore_blas_threads(os.environ)
            compute(
                connection,
                self._runtime,
                Path(request["folder"]),
                RuntimeSettings.model_validate(request["settings"]),
                request["threads"],
                request["memory_limit"],
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

    def _receive(self) -> None:
        self._is_over = not self.answer(self._control)


def ignore_signals() -> None:
    """Ignore the signals that are meant for the server."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


def main(descriptor: int) -> int:
    """Prepare the runtime, then fork on request until the connection ends."""
    ignore_signals()
    name_process("timonel zygote")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    with socket.socket(fileno=descriptor) as control:
        control.set_inheritable(False)
        settings = json.loads(control.recv(MESSAGE_BYTES))
        sys.path[:] = settings["path"]
        try:
            runtime = preload(lambda: prepared(settings["runtime"]))
        except Exception as error:  # noqa: BLE001 - reported to the server
            _LOG.exception("cannot prepare the runtime")
            control.send(json.dumps({"refused": f"{type(error).__name__}: {error}"}).encode())
            return 1
        give_back()
        control.send(json.dumps({"ready": True}).encode())
        ComputeZygote(control, runtime, settings["environment"]).serve()
    return 0


def prepared(reference: str) -> Runtime:
    """Return a runtime that is ready to be forked, by ``module:attribute``."""
    module, _, attribute = reference.partition(":")
    runtime: Runtime = getattr(importlib.import_module(module), attribute)()
    runtime.prepare()
    if threads := extra_threads():
        raise RuntimeError(
            f"cannot fork the runtime {runtime.name}: {threads}; serve it with --isolation none"
        )
    return runtime


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
