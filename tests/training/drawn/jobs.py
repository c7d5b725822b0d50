"""Jobs of scripts drawn at random, calm and killed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.training.conftest import BareEngine, log_of, results
from tests.training.disturbed import SEED
from tests.training.drawn.scripts import MODES, Draw, drawn
from tests.training.drawn.warm import WarmAgents
from timonel.engines.agent.messages import StartOrder
from timonel.engines.cluster import TaskAssignment
from timonel.engines.environment import task_environment
from timonel.errors import TimonelError
from timonel.processes.tree import own_identity
from timonel.storage import Workspace, find_workspace
from timonel.tracking import start_run
from timonel.training import Run, train
from timonel.training.job import TASK_MODULE
from timonel.training.settings import Settings
from timonel.training.spec import TrainSpec

_SEED = 5
_CHECKPOINT_STEPS = 2


def draws(purpose: str, modes: Sequence[str], count: int, seed: str = SEED) -> list[Draw]:
    """Return scripts that the seed decides."""
    chance = random.Random(f"{seed} {purpose} {modes}")
    return [drawn(chance, modes) for _ in range(count)]


def compare_jobs(draw: Draw, folder: Path, workspace: Workspace, engine: BareEngine) -> None:
    """Check that a calm job and a killed one write the same, or are refused for one reason."""
    _print(draw)
    (folder / "drawn.py").write_text(draw.script)

    def start(*kills: str) -> Run:
        return train(
            folder / "drawn.py",
            args=["kill", draw.target, *kills],
            workspace=workspace,
            on=engine,
            seed=_SEED,
            detach=True,
            checkpoint_steps=_CHECKPOINT_STEPS,
            **MODES[draw.mode],
        )

    calm, killed = start(), start(*draw.kills)
    refused, refused_too = _refusal(calm), _refusal(killed)
    if _is_refused(draw, refused, refused_too):
        return
    assert killed.record.restarts == len(draw.kills), log_of(killed)
    expected, found = results(calm), results(killed)
    assert set(found) == set(expected)
    for task_id in expected:
        _assert_same(found[task_id], expected[task_id], is_exact=draw.is_exact)


def compare_copies(draw: Draw, folder: Path, agents: WarmAgents) -> None:
    """Check that a job and those that resume copies of its folder write the same.

    The copies are what a kill leaves; a second one is of the job that resumes the first.
    """
    _print(draw)
    workspace = find_workspace(folder / "workspace")
    job = _WarmJob(draw, folder, workspace, agents)
    expected, refused = job.run(0)
    for number, _ in enumerate(draw.kills, start=1):
        found, refused_too = job.run(number)
        if _is_refused(draw, refused, refused_too):
            return
        _assert_same(found, expected, is_exact=draw.is_exact)


class _WarmJob:
    """The only task of a job, which is run again on copies of the job's folder."""

    def __init__(self, draw: Draw, folder: Path, workspace: Workspace, agents: WarmAgents) -> None:
        self._folder = folder
        self._agent = agents.of(draw.keras)
        self._warning = draw.warning
        start_run(workspace, "train", run_id="drawn", job_id="drawn")
        script = folder / "drawn.py"
        script.write_text(draw.script)
        spec = TrainSpec(
            run_id="drawn",
            workspace=workspace.uri,
            script=str(script),
            args=("copy", draw.target, *draw.kills),
            settings=Settings.of({"checkpoint_steps": _CHECKPOINT_STEPS, **MODES[draw.mode]}),
            keras=draw.keras,
            seed=_SEED,
        )
        self._spec = spec.write(workspace.runs / "drawn")

    def run(self, number: int) -> tuple[dict[str, Any], str | None]:
        """Return what the script wrote, and why it was refused, if it was.

        Args:
            number: Number of the copy; 0 for the job itself.
        """
        job_dir, log = self._folder / f"job-{number}", self._folder / f"log-{number}"
        task_dir = job_dir / "tasks" / "chief-0"
        assignment: TaskAssignment = {
            "cluster": {"chief": ["127.0.0.1:1"]},
            "task": {"type": "chief", "index": 0},
            "generation": number + 1,
            "attempt": 1,
            "reason": "",
        }
        base = {**self._agent.environ, "TIMONEL_JOB_DIR": str(job_dir)}
        order = StartOrder(
            task_id="chief-0",
            generation=number + 1,
            attempt=1,
            module=TASK_MODULE,
            args=("--spec", str(self._spec)),
            env=task_environment(base, task_dir, assignment, str(own_identity())),
            cwd=str(self._folder),
            log=log,
            task_dir=task_dir,
            umask=0o022,
        )
        ended = self._agent.run(order)
        text = log.read_text()
        print(text)
        assert "started without the zygote's imports" not in text
        if ended.report is not None:
            return {}, ended.report.message
        if not number and self._warning is not None:
            assert self._warning in text
        assert ended.exit_code == 0, ended
        return json.loads((job_dir / "chief-0.json").read_text()), None


def _print(draw: Draw) -> None:
    print(f"TIMONEL_SOAK_SEED={SEED}", draw, draw.script, sep="\n")


def _refusal(run: Run) -> str | None:
    try:
        run.wait()
    except TimonelError as error:
        return str(error)
    return None


def _is_refused(draw: Draw, calm: str | None, killed: str | None) -> bool:
    """Return whether a job is refused, or its resume, as the draw says."""
    if killed is None:
        assert calm is None
        assert draw.refusal is None
        return False
    expected = draw.refusal if calm is not None else draw.resume_refusal
    assert expected is not None, killed
    assert expected in killed
    assert calm in {None, killed}
    return True


def _assert_same(found: dict[str, Any], expected: dict[str, Any], *, is_exact: bool) -> None:
    if is_exact:
        assert found["histories"] == expected["histories"]
        assert found["state"] == expected["state"]
        assert found["bits"] == expected["bits"]
        return
    epochs = [[history[0] for history in each["histories"]] for each in (found, expected)]
    assert epochs[0] == epochs[1]
    assert set(found["state"]) == set(expected["state"])
