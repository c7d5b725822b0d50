"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timonel.storage import Workspace, find_workspace

_CLEANED = ("TIMONEL_", "MLFLOW_", "WANDB_")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings of the person who runs the tests."""
    for name in os.environ:
        if name.startswith(_CLEANED):
            monkeypatch.delenv(name)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A new workspace in a folder of its own."""
    return find_workspace(tmp_path / "workspace")
