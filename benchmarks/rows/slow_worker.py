"""Synchronous parameter-server training with one of three workers slowed tenfold."""

from __future__ import annotations

import time
from pathlib import Path

from _inputs import digits_npz
from _jobs import SCRIPTS, Job, Place, slowed, wait_for
from _rows import Found, Row
from _steps import read_steps

_TIMES = 10
_UNITS = "1024,1024"
_BATCH = 192


def slow_worker(place: Place) -> Found:
    """Without and with a backup worker, in turn."""
    folder = place.sub("slow-worker")
    digits = digits_npz(folder / "digits.npz", side=16)
    pairs, seconds = (1, 6.0) if place.quick else (2, 12.0)
    rates: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    for number in range(pairs):
        for backup in (1, 0):
            rates[backup].append(_rates(folder, digits, backup, number, seconds))
    fast = {backup: ", ".join(f"{rate[0]:.3g}" for rate in rates[backup]) for backup in rates}
    return Found(
        [
            Row(f"throughput, three workers of which one runs {_TIMES} times slower", "steps/s",
                [rate[1] for rate in rates[1]], [rate[1] for rate in rates[0]],
                "no backup worker", least=3.0),
        ],
        [
            ("Slow worker: parameter-server training in step, one server; the worker is "
            f"stopped and continued so that it runs for a tenth of the time. Before, "
            f"the jobs made {fast[1]} steps/s with a backup worker and {fast[0]} without.")
        ],
    )  # fmt: skip


def _rates(
    folder: Path, digits: Path, backup: int, number: int, seconds: float
) -> tuple[float, float]:
    """Return the steps per second at full speed and with a slow worker."""
    name = f"backup-{backup}-{number}"
    log = folder / f"{name}.steps"
    with Job(folder, name) as job:
        job.train(
            SCRIPTS / "digits.py",
            ["--strategy", "parameter-server", "--ps", "1", "--workers", "3",
             "--backup-workers", str(backup)],
            ["--digits", str(digits), "--units", _UNITS, "--batch-size", str(_BATCH),
             "--epochs", "100", "--steps-per-epoch", "1000", "--step-log", str(log)],
        )  # fmt: skip
        wait_for(lambda: len(read_steps(log)) > 30, 120, [job])
        quick = _rate(log, 5)
        with slowed(job.pid("worker-2"), _TIMES):
            time.sleep(2)
            slow = _rate(log, seconds)
    return quick, slow


def _rate(log: Path, seconds: float) -> float:
    before, begun = len(read_steps(log)), time.monotonic()
    time.sleep(seconds)
    return (len(read_steps(log)) - before) / (time.monotonic() - begun)
