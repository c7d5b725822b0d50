"""Temporary folder per start of a task, removed with the task.

TensorFlow writes a temporary file for each converted function and removes it when the interpreter
exits. A task that is killed or leaves a broken cluster never gets that far.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping

VARIABLE = "TMPDIR"


class Scratch:
    """Temporary folder of an agent's task; at most one at a time."""

    def __init__(self) -> None:
        self._folder: str | None = None

    def renew(self, env: Mapping[str, str]) -> dict[str, str]:
        """Create a new folder; return ``env`` with it as TMPDIR.

        It is below the previous TMPDIR of ``env``.

        Raises:
            OSError: The folder cannot be created.
        """
        self.remove()
        self._folder = tempfile.mkdtemp(prefix="timonel-task-", dir=env.get(VARIABLE) or None)
        return {**env, VARIABLE: self._folder}

    def remove(self) -> None:
        """Remove the folder and its content."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
