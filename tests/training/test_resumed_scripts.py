"""Scripts drawn at random, in jobs of one process, that are killed: the same result as calm ones.

``TIMONEL_SOAK_SEED`` picks others than the commit does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.conftest import BareEngine
from tests.training.drawn_jobs import DrawnJobs, draws
from tests.training.drawn_scripts import DATA, LOOPS, MODELS, STATES, Draw
from timonel.storage import Workspace

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(240)]

MODES = ("one", "one", "devices")
KINDS = [
    *(Draw((name,), "arrays", "sequential", "one", "one") for name in STATES),
    *(Draw((), name, "sequential", "one", "one") for name in DATA),
    *(Draw((), "arrays", name, "one", "one") for name in MODELS),
    *(Draw((), "arrays", "sequential", name, "one") for name in LOOPS),
]


@pytest.fixture
def drawn_jobs(tmp_path: Path, jobs_workspace: Workspace, engine: BareEngine) -> DrawnJobs:
    return DrawnJobs(tmp_path, jobs_workspace, engine)


@pytest.mark.parametrize("draw", KINDS, ids=lambda each: "-".join([*each.states, each.place]))
def test_each_kind(drawn_jobs: DrawnJobs, draw: Draw) -> None:
    drawn_jobs.compare(draw)


@pytest.mark.parametrize("number", range(200))
def test_many_scripts(drawn_jobs: DrawnJobs, number: int) -> None:
    drawn_jobs.compare(draws("many", MODES, 200)[number])
