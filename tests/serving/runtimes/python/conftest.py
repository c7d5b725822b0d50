"""Versions with Python of their own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

DOUBLER = """
    import numpy as np

    class PythonModel:
        inputs = {"x": ("float32", [None, 2])}
        outputs = {"doubled": ("float32", [None, 2]), "text": ("string", [None])}
        batchable = True

        def load(self, directory):
            self.factor = float((directory / "factor.txt").read_text())

        def predict(self, inputs):
            x = inputs["x"]
            x *= self.factor
            return {"doubled": x, "text": [str(row[0]) for row in x]}
"""


def write_version(folder: Path, code: str, files=None) -> Path:
    """Write a version with a Python model that is complete at once."""
    (folder / "assets.extra").mkdir(parents=True, exist_ok=True)
    (folder / "assets.extra" / "timonel.json").write_text("{}")
    (folder / "model.py").write_text(textwrap.dedent(code))
    for name, content in (files or {}).items():
        (folder / name).write_text(textwrap.dedent(content))
    return folder


@pytest.fixture
def doubler(tmp_path):
    return write_version(tmp_path / "doubler" / "1", DOUBLER, {"factor.txt": "2"})
