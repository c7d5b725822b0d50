"""A temporary folder for each start of a task, which goes when the task does.

TensorFlow writes a file there for each function that it converts and removes it at the end of the
interpreter, which a task that is killed or leaves a broken cluster never comes to.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping

VARIABLE = "TMPDIR"


class Scratch:
    """At most one folder at a time."""

    def __init__(self) -> None:
        self._folder: str | None = None

    def renew(self, env: Mapping[str, str]) -> dict[str, str]:
        """Make a new folder where ``env`` has temporary files; return ``env`` with it.

        Raises:
            OSError: It cannot be made.
        """
        self.remove()
        self._folder = tempfile.mkdtemp(prefix="timonel-task-", dir=env.get(VARIABLE) or None)
        return {**env, VARIABLE: self._folder}

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
