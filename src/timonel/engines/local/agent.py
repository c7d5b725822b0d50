"""The agent: one small process per task that starts, watches and restarts its child in place.

It takes orders from the supervisor as JSON lines, each under a generation number, and reports what
became of the child only when nothing that the child started is left. When the supervisor is gone
it kills all of it and leaves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from timonel.engines.local.channel import Channel
from timonel.engines.local.child import Command, Runner, close_inherited, spawn
from timonel.engines.local.loop import Loop
from timonel.engines.local.oom import SAMPLE_INTERVAL_S, OomWatch
from timonel.engines.local.processes import (
    adopt_orphans,
    descendants,
    kill_all,
    name_process,
    reap,
)
from timonel.storage import append_line

READY = "ready"
REPORT = "report.json"
PROGRESS = "progress"
_READY_POLL_S = 0.025
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_REPORT_LIMIT_BYTES = 1 << 20


def run_agent(sock: socket.socket, run: Runner | None = None, note: str | None = None) -> NoReturn:
    """Be an agent until the supervisor is gone; called in a process that was forked for it.

    Args:
        sock: The agent's end of the socket pair.
        run: How to run a task inside this process's image; plain start without it.
        note: Something to say in the task's log, such as why it was started plain.
    """
    code = 1
    try:
        os.setsid()
        adopt_orphans()
        close_inherited(keep=(sock.fileno(),))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        Agent(Channel(sock), run, note).serve()
        code = 0
    finally:
        kill_all(lambda: descendants(os.getpid()))
        os._exit(code)


class Agent:
    """Watches at most one child at a time."""

    def __init__(self, channel: Channel, run: Runner | None, note: str | None = None) -> None:
        self._channel = channel
        self._run = run
        self._note = note
        self._loop = Loop(_SIGNALS)
        self._loop.watch_channel(channel, self._obey)
        self._oom = OomWatch()
        self._sample_at = time.monotonic()
        self._pid: int | None = None
        self._generation = 0
        self._folder = Path()
        self._is_ready = False
        self._kill_at: float | None = None

    def serve(self) -> None:
        """Obey until the supervisor closes its end."""
        while self._channel.is_open:
            signals = self._loop.wait(self._timeout_s())
            if signal.SIGCHLD in signals:
                self._collect()
            self._look_after_child()

    def _obey(self) -> None:
        for order in self._channel.receive():
            if order["op"] == "start":
                self._start(order)
            elif order["op"] == "stop" and order["generation"] == self._generation:
                self._stop(order["grace_s"])

    def _start(self, order: dict[str, Any]) -> None:
        self._generation = order["generation"]
        self._folder = Path(order["task_dir"])
        self._is_ready = False
        self._kill_at = None
        try:
            self._prepare(order)
            os.umask(order["umask"])
            name_process(f"agent {order['task_id']}")
            command = Command(
                module=order["module"],
                args=order["args"],
                env=order["env"],
                cwd=order["cwd"],
                output=Path(order["log"]),
            )
            self._oom.sample()
            self._pid = spawn(command, self._runner(command.output))
        except OSError as error:
            self._report("start-failed", message=f"cannot start {order['task_id']}: {error}")
            return
        self._report("started", pid=self._pid)

    def _prepare(self, order: dict[str, Any]) -> None:
        log = Path(order["log"])
        for folder in (self._folder, log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for name in (READY, REPORT, PROGRESS):
            (self._folder / name).unlink(missing_ok=True)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        append_line(log, f"=== generation {self._generation} ({order['task_id']}, {now})")
        if self._note:
            append_line(log, f"=== {self._note}")
            self._note = None

    def _runner(self, log: Path) -> Runner | None:
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - a count is all
        if self._run is None or threads == 1:
            return self._run
        append_line(log, f"=== started plain: the warm image has {threads} threads, expected 1")
        return None

    def _stop(self, grace_s: float) -> None:
        if self._pid is None or self._kill_at is not None:
            return
        self._kill_at = time.monotonic() + grace_s
        # The task alone: its helpers are its own to end, as long as it is there to do so.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)

    def _look_after_child(self) -> None:
        if self._pid is None:
            return
        now = time.monotonic()
        if not self._is_ready and (self._folder / READY).exists():
            self._is_ready = True
            self._report("ready")
        if self._kill_at is not None and now >= self._kill_at:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if now >= self._sample_at:
            self._oom.sample()
            self._sample_at = now + SAMPLE_INTERVAL_S

    def _collect(self) -> None:
        for pid, status in reap():
            if pid == self._pid:
                self._pid = None
                self._end_generation(status)

    def _end_generation(self, status: int) -> None:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        oom_killed = number == signal.SIGKILL and self._oom.has_killed()
        kill_all(lambda: descendants(os.getpid()))
        if not self._is_ready and (self._folder / READY).exists():
            self._report("ready")
        self._report(
            "exited",
            exit_code=None if number is not None else os.WEXITSTATUS(status),
            signal=number,
            oom_killed=oom_killed,
            report=_read(self._folder / REPORT),
            progress=_read(self._folder / PROGRESS),
        )

    def _report(self, event: str, **fields: object) -> None:
        self._channel.send({"event": event, "generation": self._generation, **fields})

    def _timeout_s(self) -> float | None:
        if self._pid is None:
            return None
        wake_at = self._sample_at
        if self._kill_at is not None:
            wake_at = min(wake_at, self._kill_at)
        timeout_s = max(0.0, wake_at - time.monotonic())
        if self._kill_at is not None and timeout_s == 0.0:
            return _READY_POLL_S  # killed already; the kernel is at it
        return timeout_s if self._is_ready else min(timeout_s, _READY_POLL_S)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_REPORT_LIMIT_BYTES).decode(errors="replace")
    except OSError:
        return None
