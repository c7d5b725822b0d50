"""Task agent: starts, monitors and restarts one task's process.

It takes orders from its controller, see `timonel.engines.agent.messages`. It reports an exit only
when all descendants of the child are gone. When the controller dies, it kills them all and exits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from timonel.engines.agent.heartbeat import (
    ALIVE,
    PROGRESS,
    Heartbeat,
    read_beat,
    read_progress,
    steps_of,
)
from timonel.engines.agent.messages import (
    AgentEvent,
    StartOrder,
    StopOrder,
    decode_order,
    encode,
)
from timonel.engines.coordination.failures import TaskExit, TaskReport, parse_report
from timonel.engines.coordination.lifecycle import StartFailed, TaskExited, TaskReady, TaskStarted
from timonel.processes.loop import Channel, Loop
from timonel.processes.memory import SAMPLE_INTERVAL_S, OomWatch
from timonel.processes.run_module import run_module
from timonel.processes.spawn import ProcessCommand, Runner, close_inherited, spawn
from timonel.processes.tree import (
    adopt_orphans,
    cpu_s,
    descendants,
    is_stopped,
    kill_all,
    name_process,
    reap,
)
from timonel.processes.zygote import import_environment, single_threaded_environment
from timonel.storage import append_line

READY = "ready"
REPORT = "report.json"
OOM_REPORT = "if-out-of-memory.json"
"""File with the report to use after an out-of-memory kill."""
_READY_POLL_S = 0.025
_SECOND_TERM_S = 0.2
"""Seconds between the first SIGTERM (save and exit) and the second (exit)."""
_SILENT_S = 4.0
"""Silence in seconds after which an urgent stop kills at once."""
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_REPORT_LIMIT_BYTES = 1 << 20


def run_agent(
    sock: socket.socket,
    run: Runner | None = None,
    note: str | None = None,
    imported: Mapping[str, str] | None = None,
) -> NoReturn:
    """Run an agent until the controller exits.

    Call it in a freshly started process, which leads no session.

    Args:
        sock: The agent's end of the socket pair.
        run: Runs a task inside this process's image; None: execute a new Python.
        note: Line for the task's log, such as why it started without a zygote.
        imported: Variables with which this process has imported what tasks share; tasks with others
            execute a new Python. None: whoever asks for a task knows that they are the same.
    """
    code = 1
    scratch = _Scratch()
    try:
        os.setsid()
        adopt_orphans()
        close_inherited(keep=(sock.fileno(),))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        Agent(Channel(sock), run, note, scratch, imported).serve()
        code = 0
    finally:
        kill_all(lambda: descendants(os.getpid()))
        scratch.remove()
        os._exit(code)


def run_forked_agent(sock: socket.socket) -> NoReturn:
    """Run an agent in a zygote's child; tasks run in forks of its image."""
    run_agent(sock, run=run_module)


class Agent:
    """Agent of at most one child at a time."""

    def __init__(
        self,
        channel: Channel,
        run: Runner | None,
        note: str | None,
        scratch: _Scratch,
        imported: Mapping[str, str] | None = None,
    ) -> None:
        self._channel = channel
        self._run = run
        self._note = note
        self._scratch = scratch
        self._imported = imported
        self._loop = Loop(_SIGNALS)
        self._loop.watch_channel(channel, self._obey)
        self._oom = OomWatch()
        self._sample_at = time.monotonic()
        self._pid: int | None = None
        self._task_id = ""
        self._generation = 0
        self._attempt = 0
        self._forget_child()

    def serve(self) -> None:
        """Serve until the controller closes its end."""
        while self._channel.is_open:
            signals = self._loop.wait(self._timeout_s())
            if signal.SIGCHLD in signals:
                self._collect()
            self._watch_child()

    def _obey(self) -> None:
        for order in map(decode_order, self._channel.receive()):
            if isinstance(order, StartOrder):
                self._start(order)
            elif (order.generation, order.attempt) == (self._generation, self._attempt):
                self._stop(order)

    def _forget_child(self) -> None:
        self._folder = Path()
        self._is_ready = False
        self._kill_at: float | None = None
        self._second_term_at: float | None = None
        self._check_at: float | None = None
        self._hung: str | None = None
        self._heartbeat = Heartbeat()

    def _start(self, order: StartOrder) -> None:
        self._forget_child()
        self._task_id = order.task_id
        self._generation = order.generation
        self._attempt = order.attempt
        self._folder = order.task_dir
        self._heartbeat = Heartbeat(order.hang_timeout_s, order.stall_timeout_s)
        try:
            self._prepare(order)
            os.umask(order.umask)
            name_process(f"agent {order.task_id}")
            command = ProcessCommand(
                module=order.module,
                args=order.args,
                env=self._scratch.renew(order.env),
                cwd=order.cwd,
                output=order.log,
            )
            self._oom.sample()
            self._pid = spawn(command, self._runner(order))
        except OSError as error:
            message = f"cannot start {order.task_id}: {error}"
            self._send(StartFailed(self._generation, message))
            return
        self._send(TaskStarted(self._task_id, self._generation, self._pid, attempt=self._attempt))

    def _prepare(self, order: StartOrder) -> None:
        for folder in (order.task_dir, order.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for name in (READY, REPORT, OOM_REPORT, ALIVE, PROGRESS):
            (order.task_dir / name).unlink(missing_ok=True)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        which = f"generation {order.generation}"
        if order.attempt > 1:
            which += f", attempt {order.attempt}"
        append_line(order.log, f"=== {which} ({order.task_id}, {now})")
        if self._note:
            append_line(order.log, f"=== {self._note}")
            self._note = None

    def _runner(self, order: StartOrder) -> Runner | None:
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only a count is needed
        needed = single_threaded_environment(import_environment(order.env))
        if self._run is None:
            return None
        if threads > 1:
            reason = f"its image has {threads} threads"
        elif self._imported is not None and self._imported != needed:
            reason = "its variables differ from those of the imports"
        else:
            return self._run
        append_line(order.log, f"=== started without the zygote's imports: {reason}")
        return None

    def _stop(self, order: StopOrder) -> None:
        if self._pid is None or self._kill_at is not None:
            return
        now = time.monotonic()
        if order.urgent:
            self._second_term_at = now + _SECOND_TERM_S
            self._check(now)
            if is_stopped(self._pid):
                self._kill_as_hung("it was stopped by a signal or a debugger")
            elif self._heartbeat.silent_s(now) > _SILENT_S:
                self._kill_as_hung(f"no sign of life for {self._heartbeat.silent_s(now):.1f} s")
        if self._kill_at is None:
            self._kill_at = now + order.grace_s
        # Only the task: it stops its helpers itself while it lives.
        self._signal(signal.SIGTERM)
        # A stopped process handles the signal only after it continues.
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _kill_as_hung(self, reason: str) -> None:
        self._hung = reason
        self._kill_at = time.monotonic()
        self._signal(signal.SIGKILL)

    def _watch_child(self) -> None:
        if self._pid is None:
            return
        now = time.monotonic()
        if not self._is_ready and (self._folder / READY).exists():
            self._is_ready = True
            self._check_at = now
            self._send(TaskReady(self._task_id, self._generation, self._attempt))
        if self._check_at is not None and now >= self._check_at:
            self._check(now)
        if self._second_term_at is not None and now >= self._second_term_at:
            self._second_term_at = None
            self._signal(signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)
        if now >= self._sample_at:
            self._oom.sample()
            self._sample_at = now + SAMPLE_INTERVAL_S

    def _check(self, now: float) -> None:
        """Check a task's heartbeat and progress, and kill it if hung."""
        every_s = self._heartbeat.interval_s
        if every_s is None or not self._is_ready:
            return
        self._check_at = now + every_s
        beat, progress = read_beat(self._folder), read_progress(self._folder)
        spent_s = 0.0 if self._pid is None else cpu_s(self._pid)
        reason = self._heartbeat.observe(now, beat, progress, spent_s)
        if reason is not None and self._kill_at is None:
            self._kill_as_hung(reason)

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
            self._send(TaskReady(self._task_id, self._generation, self._attempt))
        task_exit = TaskExit(
            exit_code=None if number is not None else os.WEXITSTATUS(status),
            signal=number,
            report=self._read_report(oom_killed=oom_killed),
            oom_killed=oom_killed,
            hung=self._hung,
            progress=steps_of(read_progress(self._folder)),
        )
        self._send(TaskExited(self._task_id, self._generation, task_exit, self._attempt))
        self._scratch.remove()

    def _read_report(self, *, oom_killed: bool) -> TaskReport | None:
        text = _read(self._folder / REPORT)
        if text is None and oom_killed:
            text = _read(self._folder / OOM_REPORT)
        return parse_report(text) if text else None

    def _send(self, event: AgentEvent) -> None:
        self._channel.send(encode(event))

    def _timeout_s(self) -> float | None:
        if self._pid is None:
            return None
        times = (self._sample_at, self._kill_at, self._second_term_at, self._check_at)
        wake_at = min(time for time in times if time is not None)
        timeout_s = max(0.0, wake_at - time.monotonic())
        if self._kill_at is not None and timeout_s == 0.0:
            return _READY_POLL_S  # already killed, waiting for the kernel
        return timeout_s if self._is_ready else min(timeout_s, _READY_POLL_S)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_REPORT_LIMIT_BYTES).decode(errors="replace")
    except OSError:
        return None


class _Scratch:
    """Temporary folder per start of a task, removed with the task.

    TensorFlow writes a temporary file for each converted function and removes it when the
    interpreter exits. A task that is killed or leaves a broken cluster never gets that far.
    """

    def __init__(self) -> None:
        self._folder: str | None = None

    def renew(self, env: Mapping[str, str]) -> dict[str, str]:
        """Create a new folder below the TMPDIR of ``env``; return ``env`` with it as TMPDIR."""
        self.remove()
        self._folder = tempfile.mkdtemp(prefix="timonel-task-", dir=env.get("TMPDIR") or None)
        return {**env, "TMPDIR": self._folder}

    def remove(self) -> None:
        """Remove the folder and its content."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
