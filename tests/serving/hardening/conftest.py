"""Servers of the runtime of these tests."""

from __future__ import annotations

import pytest

from tests.serving.hardening.harness import plug_in, publish


@pytest.fixture(autouse=True)
def hard_runtime(monkeypatch):
    """Let servers find it."""
    plug_in(monkeypatch)


@pytest.fixture
def m(workspace):
    """The folder of model m, with version 1."""
    publish(workspace.models / "m", 1)
    return workspace.models / "m"
