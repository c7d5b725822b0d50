"""All checks, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from timonel.cli.doctor import machine, packages, tensorflow
from timonel.cli.doctor.check import Check


def examine(workspace: str | None = None, *, timeout_s: float = 120.0) -> Iterator[Check]:
    """Yield the checks of this machine as they are made; the slow one, TensorFlow, comes last.

    Args:
        workspace: The workspace that was named, None for the nearest one.
        timeout_s: How long TensorFlow may take to load.
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
