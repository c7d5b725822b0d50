"""Run the demo's commands as at a shell prompt."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from timonel.errors import Interrupted, TimonelError

if TYPE_CHECKING:
    from rich.console import Console

GRACE_S = 60.0


@dataclass
class Shell:
    """Shell prompt that echoes commands, runs them and measures their time.

    Commands share the terminal and the process group of the demo, so that Ctrl-C reaches them as
    if they were typed. Not thread-safe.

    Attributes:
        folder: Working directory of the commands.
        out: The console.
        took_s: Duration of each step in seconds.
        is_closing: Ignore further output of background commands.
    """

    folder: Path
    out: Console
    took_s: dict[str, float] = field(default_factory=dict)
    is_closing: bool = False
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _quiet: threading.Lock = field(default_factory=threading.Lock)

    def run(self, line: str, *, step: str) -> None:
        """Run one command and wait for it.

        Args:
            line: The command as typed.
            step: Name of the step that its duration is added to.

        Raises:
            Interrupted: The command was interrupted by Ctrl-C.
            TimonelError: The command failed; its output is on the screen.
        """
        # Holds back output of background commands meanwhile.
        with self._quiet:
            self.prompt(line)
            started = time.monotonic()
            child = self._start(to_argv(line))
            code = self._wait(child, line)
            self.took_s[step] = self.took_s.get(step, 0.0) + time.monotonic() - started
            if code == Interrupted.exit_code:
                raise _interrupted(line, code)
            self.out.print()
        if code != 0:
            raise TimonelError(
                f"'{line}' failed with exit code {code}",
                hint=f"its output is above; its folder is {self.folder}",
            )

    def background(self, line: str, on_line: Callable[[str], None]) -> subprocess.Popen[bytes]:
        """Start a command in the background and pass its lines to ``on_line``.

        While another command runs, its lines are held back, to keep the outputs apart.
        """
        self.prompt(f"{line} &")
        child = self._start(to_argv(line), capture=True)
        threading.Thread(target=self._pass_on, args=(child, on_line), daemon=True).start()
        return child

    def prompt(self, line: str) -> None:
        """Show a command as if it were typed."""
        self.out.print(f"[bold green]$[/] [bold]{_escape(line)}[/]", soft_wrap=True)

    def stop(self, child: subprocess.Popen[bytes]) -> None:
        """Terminate one command and wait for it."""
        # Not SIGINT, which shells make background jobs ignore.
        self._end(child, signal.SIGTERM)

    def _end(self, child: subprocess.Popen[bytes], number: signal.Signals) -> None:
        if child.poll() is None:
            child.send_signal(number)
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if child in self._children:
            self._children.remove(child)

    def close(self) -> None:
        """Stop every running command, the latest first."""
        self.is_closing = True
        for child in reversed(list(self._children)):
            self.stop(child)

    def _start(self, argv: Sequence[str], *, capture: bool = False) -> subprocess.Popen[bytes]:
        # Flush, so that output printed here comes before the command's.
        sys.stdout.flush()
        child = subprocess.Popen(
            argv,
            cwd=self.folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.STDOUT if capture else None,
        )
        self._children.append(child)
        return child

    def _pass_on(self, child: subprocess.Popen[bytes], on_line: Callable[[str], None]) -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                with self._quiet:
                    if not self.is_closing:
                        on_line(line.decode(errors="replace").rstrip())

    def _wait(self, child: subprocess.Popen[bytes], line: str) -> int:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            # The terminal has sent SIGINT to the command too, which ignores a second one that comes
            # quickly or at its very end; if only this process was signalled, the command gets it
            # here.
            self._end(child, signal.SIGINT)
            raise _interrupted(line, child.returncode) from None
        self._children.remove(child)
        return code


def _interrupted(line: str, code: int) -> Interrupted:
    """Return the error for Ctrl-C, marked if the command already reported it."""
    told = line.startswith("timonel ") and code == Interrupted.exit_code
    return Interrupted("interrupted", hint="run the demo again to continue", is_reported=told)


def _environment() -> dict[str, str]:
    # The demo leaves no processes behind, so the zygote must not wait for another job.
    return {**os.environ, "PYTHONUNBUFFERED": "1", "TIMONEL_WARM_LINGER": "0"}


def to_argv(line: str) -> list[str]:
    """Return the argv of ``line``; ``timonel`` means this installation."""
    words = shlex.split(line)
    if words[0] == "timonel":
        return [sys.executable, "-m", "timonel", *words[1:]]
    return ["sh", "-c", line]


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
