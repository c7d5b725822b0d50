"""Fixtures of studies whose trials are real jobs of a script that trains nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from timonel.engines import get_engine
from timonel.storage import Workspace, find_workspace

SCRIPT = Path(__file__).parent / "scripts" / "trial.py"


@pytest.fixture(scope="module")
def shared_workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One workspace for all studies of a module, which share a zygote."""
    return find_workspace(tmp_path_factory.mktemp("studies") / "workspace")


@pytest.fixture
def workspace(shared_workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """The workspace; jobs that a test leaves running are stopped."""
    monkeypatch.setenv("TIMONEL_WARM_LINGER", "30")
    monkeypatch.setenv("TIMONEL_MIRRORS", "none")
    yield shared_workspace
    engine = get_engine("local", shared_workspace)
    for job in engine.jobs():
        if not job.state.is_final:
            engine.cancel(job.job_id)
