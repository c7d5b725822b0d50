from __future__ import annotations

import pytest

from timonel.models import child
from timonel.serving.selection.benchmark import process


class Ended:
    """A process that has answered at once."""

    stdin = None

    def __init__(self, command, **_):
        self.code = process.main(command[-2:])

    def wait(self, timeout=None):
        return self.code

    def poll(self):
        return self.code


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """TensorFlow takes seconds to import, and is there already."""
    monkeypatch.setattr(child.subprocess, "Popen", Ended)
