"""Scripts drawn at random whose jobs are killed: the same result as calm ones, or a named refusal.

``make test-all`` runs the same ones each time. ``TIMONEL_SOAK_SEED`` picks others for the soak than
the commit does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.conftest import BareEngine
from tests.training.drawn.frame import DATA, LOOPS
from tests.training.drawn.jobs import compare_copies, compare_jobs, draws
from tests.training.drawn.models import MODELS
from tests.training.drawn.scripts import Draw
from tests.training.drawn.states import STATES
from tests.training.drawn.warm import WarmAgents
from timonel.storage import Workspace

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

IN_ONE_PROCESS = ("one", "one", "devices")
IN_SEVERAL = ("workers", "workers", "synchronous", "asynchronous")
KINDS = [
    *(Draw((name,), "arrays", "sequential", "one", "one") for name in STATES),
    *(Draw((), name, "sequential", "one", "one") for name in DATA),
    *(Draw((), "arrays", name, "one", "one") for name in MODELS),
    *(Draw((), "arrays", "sequential", name, "one") for name in LOOPS),
]


@pytest.fixture(scope="module")
def agents() -> Iterator[WarmAgents]:
    """Agents that import TensorFlow once; a task of theirs takes three seconds of a processor."""
    found = WarmAgents()
    yield found
    found.close()


@pytest.mark.parametrize("number", range(36))
def test_some_scripts(number: int, tmp_path: Path, agents: WarmAgents) -> None:
    compare_copies(draws("some", ("one",), 36, seed="0")[number], tmp_path, agents)


@pytest.mark.parametrize("kill", ["a:0:7", "a:0:8"])
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_the_loss_that_a_step_of_the_script_returns(
    flavour: str, kill: str, tmp_path: Path, agents: WarmAgents
) -> None:
    """In the middle of an epoch, and after one: Keras would show a metric that it has built."""
    draw = Draw((), "steps", "target_network", "one", "one", flavour, (kill,))
    compare_copies(draw, tmp_path, agents)


@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_a_callback_that_replaces_optimizers_of_a_model(
    flavour: str, tmp_path: Path, agents: WarmAgents
) -> None:
    """Before they have created the variables whose values the checkpoint has."""
    draw = Draw((), "arrays", "gan", "compile", "one", flavour, ("a:1:0",))
    compare_copies(draw, tmp_path, agents)


@pytest.mark.parametrize("mode", ["devices", "workers", "synchronous", "asynchronous"])
def test_jobs_of_each_mode(
    mode: str, tmp_path: Path, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    compare_jobs(draws("jobs", [mode], 1, seed="0")[0], tmp_path, jobs_workspace, engine)


@pytest.mark.soak
@pytest.mark.parametrize("draw", KINDS, ids=lambda each: "-".join([*each.states, each.place]))
def test_each_kind(draw: Draw, tmp_path: Path, agents: WarmAgents) -> None:
    compare_copies(draw, tmp_path, agents)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(300))
def test_many_scripts(number: int, tmp_path: Path, agents: WarmAgents) -> None:
    compare_copies(draws("many", IN_ONE_PROCESS, 300)[number], tmp_path, agents)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(100))
def test_many_jobs(
    number: int, tmp_path: Path, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    modes = (*IN_ONE_PROCESS, *IN_SEVERAL)
    compare_jobs(draws("many", modes, 100)[number], tmp_path, jobs_workspace, engine)
