"""Fail tests that start a process but lack the marker ``process``."""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Shared processes; the first test that needs one starts it.
_SHARED = ("timonel.processes.zygote_process", "wandb-core")
# make test runs none of them.
_MARKERS = ("process", "soak", "browser", "beam", "cluster")
_EVENTS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"}
_SHELLS = {"bash", "dash", "env", "sh"}


class ProcessGuard:
    """Plugin of pytest that watches for new programs; a mere fork takes milliseconds.

    All tests that use a fixture that starts one are checked, whichever ran first. Threads older
    than a test do not count, as they may work for an earlier one.
    """

    def __init__(self) -> None:
        # Shared with forked children, which may execute a program.
        self._shared = mmap.mmap(-1, 256)
        self._fixtures: dict[Any, str] = {}
        self._older: set[int | None] = set()
        sys.addaudithook(self._on_event)

    @property
    def _started(self) -> str | None:
        return self._shared[:].rstrip(b"\0").decode(errors="replace") or None

    @_started.setter
    def _started(self, program: str | None) -> None:
        text = (program or "").encode(errors="replace")
        self._shared[:] = text[:256].ljust(256, b"\0")

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or threading.get_ident() in self._older:
            return
        program, words = arguments[:2] if len(arguments) > 1 else (None, arguments[0])
        words = [words] if isinstance(words, str | bytes | os.PathLike) else list(words)
        command = [os.fsdecode(word) for word in (program or words[0], *words[1:])]
        if event == "os.system":
            command = ["sh", "-c", *command]
        if _is_ours(command):
            self._started = " ".join([Path(command[0]).name, *command[1:]])

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Remember which fixtures start processes."""
        before, self._started = self._started, None
        try:
            return (yield)
        finally:
            if self._started is not None:
                self._fixtures[fixturedef] = self._started
            self._started = self._started or before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        """Forget what earlier tests started."""
        main = threading.main_thread()
        self._older = {each.ident for each in threading.enumerate() if each is not main}
        self._started = None
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Check a test that passed."""
        result = yield
        used = (each for each in _fixtures_of(item) if each in self._fixtures)
        started = self._started or next(map(self._fixtures.__getitem__, used), None)
        if started and not any(map(item.get_closest_marker, _MARKERS)):
            pytest.fail(f"it starts a process ({started}): mark it with @pytest.mark.process")
        return result


def _is_ours(command: list[str]) -> bool:
    """Whether it is a Python, or part of an installed package; tools such as git answer at once."""
    if any(name in word for name in _SHARED for word in command):
        return False
    if Path(command[0]).name in _SHELLS:
        return any(map(_is_ours_alone, _words_of(command[1:])))
    return _is_ours_alone(command[0])


def _words_of(command: list[str]) -> list[str]:
    """Return the words of a shell's script, as far as it can be split."""
    try:
        return [word for text in command for word in shlex.split(text)]
    except ValueError:
        return " ".join(command).split()


def _is_ours_alone(word: str) -> bool:
    path = Path(word if "/" in word else shutil.which(word) or word)
    return path.name.startswith("python") or path.is_relative_to(sys.prefix)


def _fixtures_of(item: pytest.Item) -> list[Any]:
    """Return the fixtures that a test has used, also those that it asked for by name."""
    request = getattr(item, "_request", None)
    return [] if request is None else list(request._fixture_defs.values())
