"""A runtime whose models wait: they answer requests with ``x[0] > 1`` once a file exists."""

from __future__ import annotations

import time
from pathlib import Path

from tests.contracts.runtimes import FakeModel

from timonel.serving.runtimes.base import Runtime


class GatedModel(FakeModel):
    def __init__(self, gate: Path) -> None:
        super().__init__(1.0)
        self._gate = gate

    def run(self, signature, inputs, outputs=None):
        while inputs["x"].flat[0] > 1 and not self._gate.exists():
            time.sleep(0.01)
        return {"y": inputs["x"]}


class GatedRuntime(Runtime):
    name = "gated"

    def prepare(self) -> None:
        """Do nothing."""

    def load(self, path, settings):
        return GatedModel(Path((path / "saved_model.pb").read_text()))
