"""Jobs of scripts drawn at random, calm and killed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.training.conftest import BareEngine, log_of, results
from tests.training.disturbed import SEED
from tests.training.drawn_scripts import MODES, Draw, drawn
from timonel.errors import TimonelError
from timonel.storage import Workspace
from timonel.training import Run, train


def draws(purpose: str, modes: Sequence[str], count: int) -> list[Draw]:
    """Return scripts that the seed decides."""
    chance = random.Random(f"{SEED} {purpose} {modes}")
    return [drawn(chance, modes) for _ in range(count)]


class DrawnJobs:
    """Runs drawn scripts, calm and killed.

    Args:
        folder: Folder of the script.
        workspace: Workspace of the jobs.
        engine: Engine of the jobs.
    """

    def __init__(self, folder: Path, workspace: Workspace, engine: BareEngine) -> None:
        self._folder = folder
        self._workspace = workspace
        self._engine = engine

    def compare(self, draw: Draw) -> None:
        """Check that a calm job and a killed one write the same, or are refused for one reason."""
        print(f"TIMONEL_SOAK_SEED={SEED}", draw, draw.script, sep="\n")
        (self._folder / "drawn.py").write_text(draw.script)
        calm, killed = self._start(draw), self._start(draw, *draw.kills)
        refused, refused_too = _refusal(calm), _refusal(killed)
        assert refused == refused_too
        if refused is not None:
            assert draw.refusal is not None, refused
            assert draw.refusal in refused
            return
        assert draw.refusal is None
        assert killed.record.restarts == len(draw.kills), log_of(killed)
        expected, found = results(calm), results(killed)
        assert set(found) == set(expected)
        for task_id in expected:
            _assert_same(found[task_id], expected[task_id], is_exact=draw.is_exact)

    def _start(self, draw: Draw, *kills: str) -> Run:
        return train(
            self._folder / "drawn.py",
            args=[draw.target, *kills],
            workspace=self._workspace,
            on=self._engine,
            seed=5,
            detach=True,
            checkpoint_steps=2,
            **MODES[draw.mode],
        )


def _refusal(run: Run) -> str | None:
    try:
        run.wait()
    except TimonelError as error:
        return str(error)
    return None


def _assert_same(found: dict[str, Any], expected: dict[str, Any], *, is_exact: bool) -> None:
    if is_exact:
        assert found["histories"] == expected["histories"]
        assert found["state"] == expected["state"]
        assert found["bits"] == expected["bits"]
        return
    epochs = [[history[0] for history in each["histories"]] for each in (found, expected)]
    assert epochs[0] == epochs[1]
    assert set(found["state"]) == set(expected["state"])
