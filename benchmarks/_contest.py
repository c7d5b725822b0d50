"""The benchmark's side of the turns that jobs take; ``scripts/steps.py`` has the jobs' side."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from _jobs import Processes, wait_for

Rounds = list[list[float]]
"""Seconds of each step of each turn."""


class Contest:
    """Jobs that train in turn.

    Args:
        folder: A folder of its own.
        sides: How many jobs.
        steps: Steps of a turn.
        rounds: Turns of each.
        first: Steps of the first turn, which traces and is not counted.
    """

    def __init__(
        self, folder: Path, sides: int, steps: int, rounds: int, first: int | None = None
    ) -> None:
        self._folder = folder
        self._sides = sides
        self._given = {"sides": sides, "steps": steps, "rounds": rounds, "first": first}
        self.total = (first or steps) + steps * (rounds - 1)

    def options(self, side: int) -> str:
        """Return what job number ``side`` is told."""
        return json.dumps({"folder": str(self._folder), "side": side, **self._given})

    def run(self, jobs: Sequence[Processes], tasks: int, seconds: float) -> list[Rounds]:
        """Let them begin once all ``tasks`` processes are there, and wait for the last turn."""
        wait_for(lambda: len(list(self._folder.glob("here-*"))) >= tasks, 120, jobs)
        turn = self._folder / "turn"
        turn.write_text("0")
        last = self._sides * self._given["rounds"]
        wait_for(lambda: int(turn.read_text() or 0) >= last, seconds, jobs)
        for job in jobs:
            job.wait(90)
        return [
            json.loads((self._folder / f"times-{side}.json").read_text())
            for side in range(self._sides)
        ]


def step_ms(rounds: Rounds) -> list[float]:
    """Return the mean step of each turn but the first.

    The first step of a turn finds what was prepared during the others' turn, the last one may hold
    the end of an epoch: neither counts.
    """
    return [1000 * statistics.fmean(times[1:-1]) for times in rounds[1:]]


def whole_ms(rounds: Rounds) -> list[float]:
    """Return the mean step of each turn but the first, with all that happened between steps."""
    return [1000 * statistics.fmean(times) for times in rounds[1:]]
