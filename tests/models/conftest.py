"""Exports to publish, made without TensorFlow: copies of a real one that is kept as a fixture."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "formats" / "1"


@pytest.fixture
def export_folder(tmp_path: Path) -> Path:
    """A real export of a tiny image classifier with labels 'no' and 'yes'."""
    return Path(shutil.copytree(FORMAT_1 / "export", tmp_path / "export"))
