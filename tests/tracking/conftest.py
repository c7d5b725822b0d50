"""What tests of tracking share: the mirrors that are installed are on."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def mirrors_are_on(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use every mirror that is installed."""
    monkeypatch.delenv("TIMONEL_MIRRORS")
