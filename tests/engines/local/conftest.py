"""Fixtures of the local engine's tests."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.engines import eventually


@pytest.fixture(scope="session")
def zygote_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for the zygotes of the session: saves an import per test."""
    folder = tmp_path_factory.mktemp("runtime")
    yield folder
    for pid in zygotes(folder):
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not zygotes(folder))
    shutil.rmtree(folder)


@pytest.fixture
def zygote_runtime(zygote_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(zygote_folder))
    return zygote_folder


def zygotes(folder: Path) -> list[int]:
    """Return the zygotes whose sockets are in ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            name = (process / "comm").read_text().strip()
            here = (process / "cwd").readlink()
        except OSError:
            continue
        # What it forked has the same command line, and a name of its own.
        is_parent = b"timonel.processes.zygote" in command and not name.startswith("agent")
        if is_parent and name != "task" and here == folder / "timonel":
            found.append(int(process.name))
    return found
