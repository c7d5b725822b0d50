"""Run all checks in display order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from timonel.cli.doctor import machine, packages, tensorflow
from timonel.cli.doctor.check import Check


def examine(workspace: str | None = None, *, timeout_s: float = 120.0) -> Iterator[Check]:
    """Yield the checks of this machine as they finish, TensorFlow's last.

    Args:
        workspace: The workspace option; None for the nearest workspace.
        timeout_s: Time limit for loading TensorFlow.
    """
    yield packages.python()
    yield packages.kernel()
    yield from packages.extras()
    yield machine.cores()
    yield machine.memory()
    yield from machine.disk(workspace)
    yield machine.open_files()
    yield from machine.ports()
    yield packages.event_loop()
    yield packages.json_reader()
    yield machine.shared_memory(Path("/dev/shm"))  # noqa: S108 - looked at, not written
    yield from tensorflow.checks(timeout_s)
