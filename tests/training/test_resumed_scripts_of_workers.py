"""Scripts drawn at random, in jobs of several tasks, that are killed: the same result as calm ones.

``TIMONEL_SOAK_SEED`` picks others than the commit does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.conftest import BareEngine
from tests.training.drawn_jobs import DrawnJobs, draws
from timonel.storage import Workspace

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(240)]

MODES = ("workers", "workers", "synchronous", "asynchronous")


@pytest.fixture
def drawn_jobs(tmp_path: Path, jobs_workspace: Workspace, engine: BareEngine) -> DrawnJobs:
    return DrawnJobs(tmp_path, jobs_workspace, engine)


@pytest.mark.parametrize("number", range(200))
def test_many_scripts(drawn_jobs: DrawnJobs, number: int) -> None:
    drawn_jobs.compare(draws("many", MODES, 200)[number])
