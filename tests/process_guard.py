"""Fail tests that start a process but lack the marker ``process``."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Shared processes; the first test that needs one starts it.
_SHARED = ("timonel.serving.isolation.zygote", "wandb-core")


class ProcessGuard:
    """Plugin of pytest that watches for new programs; a mere fork takes milliseconds.

    A fixture that started one has all its tests checked, also those that find it ready, so that
    the outcome hardly depends on the order of tests.
    """

    def __init__(self) -> None:
        # Shared with forked children, which may execute a program.
        self._shared = mmap.mmap(-1, 256)
        self._fixtures: dict[Any, str] = {}
        sys.addaudithook(self._on_event)

    @property
    def _started(self) -> str | None:
        return self._shared[:].rstrip(b"\0").decode(errors="replace") or None

    @_started.setter
    def _started(self, program: str | None) -> None:
        self._shared[:] = (program or "").encode()[:256].ljust(256, b"\0")

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in {"subprocess.Popen", "os.exec"}:
            return
        program, words = arguments[:2]
        words = [words] if isinstance(words, str | bytes | os.PathLike) else list(words)
        command = [os.fsdecode(word) for word in (program or words[0], *words[1:])]
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
        self._started = None
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Check a test that passed."""
        result = yield
        used = (each for each in _fixtures_of(item) if each in self._fixtures)
        started = self._started or next(map(self._fixtures.__getitem__, used), None)
        if started and item.get_closest_marker("process") is None:
            pytest.fail(f"it starts a process ({started}): mark it with @pytest.mark.process")
        return result


def _is_ours(command: list[str]) -> bool:
    """Whether it is a Python, or part of an installed package; tools such as git answer at once."""
    path = Path(command[0])
    shared = any(name in word for name in _SHARED for word in command)
    return not shared and (path.name.startswith("python") or path.is_relative_to(sys.prefix))


def _fixtures_of(item: pytest.Item) -> list[Any]:
    info = getattr(item, "_fixtureinfo", None)
    return (
        [] if info is None else [each for found in info.name2fixturedefs.values() for each in found]
    )
