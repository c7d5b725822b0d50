"""Running the demo's commands as a person at a prompt would, and ending them with the demo."""

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
    """A prompt in a folder: echoes a command, runs it, measures it.

    Commands share the terminal and the process group of the demo, so that Ctrl-C reaches them as
    it would if they were typed. Not safe for use by several threads.

    Attributes:
        folder: Where.
        out: The terminal.
        took_s: Seconds of each step.
        is_ending: What commands in the background say from now on is of no interest.
    """

    folder: Path
    out: Console
    took_s: dict[str, float] = field(default_factory=dict)
    is_ending: bool = False
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _quiet: threading.Lock = field(default_factory=threading.Lock)

    def run(self, line: str, *, step: str) -> None:
        """Run one command to its end.

        Args:
            line: The command as typed.
            step: What its time is noted as.

        Raises:
            Interrupted: Ctrl-C has ended it.
            TimonelError: It failed; what it said is on the screen.
        """
        # Lines of commands in the background wait meanwhile.
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
                f"expected '{line}' to succeed, but it ended with exit code {code}",
                hint=f"what it said is above; its folder is {self.folder}",
            )

    def background(self, line: str, tell: Callable[[str], None]) -> subprocess.Popen[bytes]:
        """Start one command and go on; each line that it prints goes to ``tell``.

        While another command runs, its lines wait: they would stand within that one's output.
        """
        self.prompt(f"{line} &")
        child = self._start(to_argv(line), capture=True)
        threading.Thread(target=self._pass_on, args=(child, tell), daemon=True).start()
        return child

    def prompt(self, line: str) -> None:
        """Show a command as if it were typed."""
        self.out.print(f"[bold green]$[/] [bold]{_escape(line)}[/]", soft_wrap=True)

    def stop(self, child: subprocess.Popen[bytes]) -> None:
        """Ask one command to end, and wait for it."""
        # Not SIGINT, which a shell's background jobs are started to ignore.
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
        """End every command that still runs, the latest first."""
        self.is_ending = True
        for child in reversed(list(self._children)):
            self.stop(child)

    def _start(self, argv: Sequence[str], *, capture: bool = False) -> subprocess.Popen[bytes]:
        # What is printed here is to come before what the command prints.
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

    def _pass_on(self, child: subprocess.Popen[bytes], tell: Callable[[str], None]) -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                with self._quiet:
                    if not self.is_ending:
                        tell(line.decode(errors="replace").rstrip())

    def _wait(self, child: subprocess.Popen[bytes], line: str) -> int:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            # The terminal has told the command too, which overlooks a second SIGINT in a hurry or
            # at its very end; if this process was signalled alone, it is told here.
            self._end(child, signal.SIGINT)
            raise _interrupted(line, child.returncode) from None
        self._children.remove(child)
        return code


def _interrupted(line: str, code: int) -> Interrupted:
    """Return the end that Ctrl-C brings: a command of timonel has said so in its own words."""
    told = line.startswith("timonel ") and code == Interrupted.exit_code
    return Interrupted("interrupted", hint="the demo goes on if it is started again", is_told=told)


def _environment() -> dict[str, str]:
    # Nothing may stay behind when the demo ends, so that no warm parent waits for a next job.
    return {**os.environ, "PYTHONUNBUFFERED": "1", "TIMONEL_WARM_LINGER": "0"}


def to_argv(line: str) -> list[str]:
    """Return the command that ``line`` stands for; ``timonel`` is this very installation."""
    words = shlex.split(line)
    if words[0] == "timonel":
        return [sys.executable, "-m", "timonel", *words[1:]]
    return ["sh", "-c", line]


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
