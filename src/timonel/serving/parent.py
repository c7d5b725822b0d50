"""Parent of a server process: starts it from the zygote, and restarts it after a crash.

It imports neither TensorFlow nor the server. Without a zygote, such as for a server that computes
everything with LiteRT, it executes a new Python. ``python -m timonel.serving.parent`` is started by
`timonel.serve`, and stops when its stdin is closed, unless detached.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from timonel.errors import ServingError
from timonel.processes.backoff import CrashBackoff
from timonel.processes.loop import Loop
from timonel.processes.ports import UNIX
from timonel.processes.spawn import describe_exit
from timonel.processes.tree import MARKS
from timonel.processes.zygote import ForkedChild, ZygoteError
from timonel.processes.zygote_client import ensure_zygote, request_child
from timonel.serving.process_io import STDIN, STOP_MARGIN_S, read_line, run_reporting
from timonel.serving.selection.choice import needs_tensorflow
from timonel.serving.server_records import ServerRecord, parse_record
from timonel.serving.settings.server import ServerSettings

_LOG = logging.getLogger(__name__)

PRELOAD = ("tensorflow", "timonel.serving.server_process")
"""Modules that the zygote of servers imports."""
_ENTRY = "timonel.serving.server_process:run_forked"
_MAX_CRASHES = 5
_STATUS_S = 2.0


def main() -> int:
    """Run the server with the settings from stdin; return the exit code."""
    orders = json.loads(read_line())
    settings = ServerSettings.model_validate(orders["settings"])
    leash = None if orders["detach"] else STDIN
    server = partial(supervise, settings, leash=leash, log=orders["log"])
    return run_reporting(orders["report"], server)


def supervise(
    settings: ServerSettings,
    *,
    on_ready: Callable[[ServerRecord], None] | None = None,
    leash: int | None = None,
    log: str | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT; a second SIGINT kills it.

    Must be called in the main thread of a dedicated process.

    Args:
        on_ready: Called once, when the server first accepts requests.
        leash: A file descriptor; the server also stops when the other end is closed.
        log: The log file of this process, for the server's record.
    """
    _Parent(settings, on_ready, leash, log).run()


class _Parent:
    def __init__(
        self,
        settings: ServerSettings,
        on_ready: Callable[[ServerRecord], None] | None,
        leash: int | None,
        log: str | None,
    ) -> None:
        self._settings = settings
        self._on_ready = on_ready
        self._log = log
        self._loop = Loop((signal.SIGTERM, signal.SIGINT))
        self._kill_at: float | None = None
        """When to kill the server; None unless it was asked to stop."""
        if leash is not None:
            self._loop.watch(leash, lambda: self._read_leash(leash))

    def run(self) -> None:
        crashes = CrashBackoff()
        was_ready = False
        while True:
            server = _ServerProcess(self._loop, self._settings, self._log)
            self._wait(server)
            was_ready = was_ready or server.record is not None
            if self._kill_at is not None or server.code == 0:
                return
            if not was_ready:
                raise server.failure()
            delay_s = crashes.add(time.monotonic())
            if crashes.count >= _MAX_CRASHES:
                raise ServingError(
                    f"The server ended {_MAX_CRASHES} times within {crashes.window_s:g} s; at last "
                    f"it {server.end}"
                )
            _LOG.error("The server %s. Restarting in %g s", server.end, delay_s)
            self._pause(delay_s)
            if self._kill_at is not None:
                return

    def _wait(self, server: _ServerProcess) -> None:
        """Wait until the server has ended; pass on signals and its first report."""
        while not server.has_ended:
            left_s = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            self._handle(self._loop.wait(left_s))
            if self._kill_at is not None:
                server.stop(at_once=time.monotonic() >= self._kill_at)
            if server.record is not None and self._on_ready is not None:
                # After a restart, clients find the server at the same ports.
                self._settings = _with_ports_of(server.record, self._settings)
                self._on_ready(server.record)
                self._on_ready = None

    def _pause(self, delay_s: float) -> None:
        until = time.monotonic() + delay_s
        while self._kill_at is None and (left_s := until - time.monotonic()) > 0:
            self._handle(self._loop.wait(left_s))

    def _handle(self, signals: list[int]) -> None:
        for number in signals:
            if self._kill_at is None:
                self._kill_at = time.monotonic() + self._settings.drain_s + STOP_MARGIN_S
            elif number == signal.SIGINT:
                self._kill_at = 0.0

    def _read_leash(self, leash: int) -> None:
        if not os.read(leash, 4096):
            self._loop.forget(leash)
            self._handle([signal.SIGTERM])


class _ServerProcess:
    """A server process; ``code`` is negative for a signal, None if unknown."""

    def __init__(self, loop: Loop, settings: ServerSettings, log: str | None) -> None:
        self.record: ServerRecord | None = None
        self.code: int | None = None
        self.has_ended = False
        self._loop = loop
        self._error: Mapping[str, Any] | None = None
        self._received = b""
        self._has_reported = False
        self._is_stopping = False
        self._child: ForkedChild | None = None
        self._spawned: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None
        self._orders = {
            "settings": settings.model_dump(mode="json"),
            "owner": os.getpid(),
            "log": log,
        }
        self._report, report_end = os.pipe()
        leash_end, self._leash = os.pipe()
        self._ends: tuple[int, ...] = (report_end, leash_end)
        loop.watch(self._report, self._read_report)
        if needs_tensorflow(settings.models, settings.runtime):
            self._request()
        if self._child is None:
            self._spawn()

    @property
    def end(self) -> str:
        """How the process ended."""
        if self._error is not None:
            return f"failed: {self._error['error']}"
        return "ended" if self.code is None else describe_exit(self.code)

    def failure(self) -> ServingError:
        """Return the error of a server that never was ready."""
        if self._error is not None:
            return ServingError(self._error["error"], hint=self._error["hint"])
        return ServingError(f"The server {self.end} before it was ready")

    def stop(self, *, at_once: bool) -> None:
        """Ask the process to stop, once; kill it with ``at_once``."""
        if self.has_ended:
            return
        if self._pidfd is None:  # the zygote has not forked it yet
            self._end()
        elif at_once or not self._is_stopping:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL if at_once else signal.SIGTERM)
        self._is_stopping = True

    def _request(self) -> None:
        """Ask the zygote for the process; its answer comes to `_on_forked`."""
        own_end, child_end = socket.socketpair()
        try:
            with child_end:
                marks = {name: os.environ[name] for name in MARKS if name in os.environ}
                ensure_zygote(PRELOAD, os.environ)
                self._child = request_child(PRELOAD, os.environ, child_end, _ENTRY, marks)
            report_end, leash_end = self._ends
            socket.send_fds(own_end, [b"\n"], [leash_end, 1, 2, report_end])
        except (OSError, ZygoteError) as error:
            _LOG.info("started without a zygote: %s", error)
            self._child = None
            return
        finally:
            own_end.close()
        self._loop.watch(self._child.fileno(), self._on_forked)

    def _on_forked(self) -> None:
        assert self._child is not None
        try:
            pid = self._child.wait_for_pid(0)
        except ZygoteError as error:
            self._loop.forget(self._child.fileno())
            self._child.close()
            self._child = None
            _LOG.info("started without a zygote: %s", error)
            self._spawn()
            return
        if pid is None:
            return
        self._loop.forget(self._child.fileno())
        place = {"cwd": str(Path.cwd()), "env": dict(os.environ)}
        self._started(os.pidfd_open(pid), place, self._orders)

    def _spawn(self) -> None:
        report_end, leash_end = self._ends
        self._spawned = subprocess.Popen(
            [sys.executable, "-P", "-m", "timonel.serving.server_process", str(report_end)],
            stdin=leash_end,
            pass_fds=(report_end,),
            # Ctrl-C in a terminal goes to every process of the group; only this one forwards it.
            start_new_session=True,
        )
        self._started(os.pidfd_open(self._spawned.pid), self._orders)

    def _started(self, pidfd: int, *orders: Mapping[str, Any]) -> None:
        self._pidfd = pidfd
        for each in self._ends:
            os.close(each)
        self._ends = ()
        self._loop.watch(pidfd, self._end)
        with contextlib.suppress(BrokenPipeError), open(self._leash, "wb", closefd=False) as leash:
            leash.writelines(json.dumps(order).encode() + b"\n" for order in orders)

    def _read_report(self) -> None:
        """Read from the pipe on which the server reports once, then closes it."""
        chunk = os.read(self._report, 1 << 16)
        self._received += chunk
        if chunk:
            return
        self._loop.forget(self._report)
        self._has_reported = True
        report: dict[str, Any] = json.loads(self._received or b"{}")
        if "ready" in report:
            self.record = parse_record(report["ready"])
        else:
            self._error = report or None

    def _end(self) -> None:
        """Collect the status of a process that has ended, and release its descriptors."""
        self.has_ended = True
        # A process that the zygote is about to fork ends, as it finds no orders.
        for descriptor in (self._leash, *self._ends):
            os.close(descriptor)
        os.set_blocking(self._report, False)
        with contextlib.suppress(BlockingIOError):
            while not self._has_reported:
                self._read_report()
        if not self._has_reported:
            self._loop.forget(self._report)
        if self._pidfd is not None:
            self._loop.forget(self._pidfd)
            os.close(self._pidfd)
        elif self._child is not None:
            self._loop.forget(self._child.fileno())
        if self._spawned is not None:
            self.code = self._spawned.wait()
        if self._child is not None:
            # A zygote that ended before the server cannot tell its status.
            with contextlib.suppress(ZygoteError):
                status = self._child.wait(_STATUS_S) if self._child.pid else None
                self.code = None if status is None else os.waitstatus_to_exitcode(status)
            self._child.close()
        os.close(self._report)


def _with_ports_of(record: ServerRecord, settings: ServerSettings) -> ServerSettings:
    rest, grpc = (
        int(address.rpartition(":")[2]) if address and not address.startswith(UNIX) else port
        for address, port in (
            (record.rest_url, settings.rest_port),
            (record.grpc_address, settings.grpc_port),
        )
    )
    return settings.model_copy(update={"rest_port": rest, "grpc_port": grpc})


if __name__ == "__main__":
    sys.exit(main())
