"""Logs of steps that scripts have written; ``scripts/steps.py`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _jobs import Processes, wait_for


@dataclass(frozen=True)
class Step:
    """A line of the log of steps: when step ``number`` was done; 0 is where ``fit`` begins."""

    at: float
    number: int
    loss: float


def read_steps(path: Path) -> list[Step]:
    """Return the lines of a log of steps that are whole."""
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0].splitlines()
    fields = [line.split() for line in whole]
    return [Step(float(at), int(number), float(loss)) for at, number, loss in fields]


def begins(path: Path) -> int:
    """Return how often ``fit`` has begun."""
    return sum(step.number == 0 for step in read_steps(path))


def last_step(path: Path) -> int:
    """Return the number of the last step; 0 where ``fit`` has just begun, or nothing has."""
    steps = read_steps(path)
    return steps[-1].number if steps else 0


def around_last_begin(path: Path) -> tuple[Step, Step]:
    """Return the steps before and after ``fit`` began for the last time."""
    steps = read_steps(path)
    begin = max(place for place, step in enumerate(steps) if step.number == 0)
    return steps[begin - 1], steps[begin + 1]


def wait_for_begin(path: Path, before: int, processes: Sequence[Processes]) -> None:
    """Wait until ``fit`` has begun more than ``before`` times, and has trained a step."""
    wait_for(lambda: begins(path) > before, 120, processes)
    wait_for(lambda: last_step(path) > 0, 120, processes)
