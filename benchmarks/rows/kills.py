"""What a SIGKILL costs: the time to the next trained step, and the steps lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _inputs import digits_npz
from _jobs import (
    BARE,
    PYTHON,
    SCRIPTS,
    Job,
    Place,
    Processes,
    wait_for,
)
from _main_job import tf_configs
from _rows import Found, Row
from _steps import around_last_begin, begins, last_step, wait_for_begin

_SAVE_STEPS = 20
_UNITS = "1024,1024"
_BATCH = 128
Phase = dict[str, Any]
"""When a job's status changed, and to what."""
_LEGACY = {"TF_USE_LEGACY_KERAS": "1"}


@dataclass(frozen=True)
class Kill:
    """One SIGKILL, and what came of it.

    Attributes:
        at: When.
        before: The last step that was trained before.
        resumed_at: When the next step was trained.
        after: Its number.
    """

    at: float
    before: int
    resumed_at: float
    after: int

    @property
    def took_s(self) -> float:
        """Seconds without training."""
        return self.resumed_at - self.at

    @property
    def lost(self) -> int:
        """Steps that were trained again although a checkpoint held them."""
        return self.before // _SAVE_STEPS * _SAVE_STEPS + 1 - self.after


def kills(place: Place) -> Found:
    """Ours against bare processes with BackupAndRestore, which a shell loop starts again."""
    folder = place.sub("kills")
    digits = digits_npz(folder / "digits.npz")
    count = 1 if place.quick else 3
    chance = random.Random(3)
    ours, phases = _ours(folder, digits, count, chance)
    bare = _bare(folder, digits, count, chance)
    lost = [max(0, kill.lost) for kill in ours]
    return Found(
        [
            Row("from SIGKILL of a worker to the next trained step", "s",
                [kill.took_s for kill in ours], [kill.took_s for kill in bare],
                "both started again, BackupAndRestore", most=0.33),
        ],
        [
            (f"SIGKILL: two workers, state saved at every {_SAVE_STEPS} steps on both sides, "
            f"worker killed {count} times in a job. Seconds: ours "
            f"{_list(kill.took_s for kill in ours)}, by hand {_list(k.took_s for k in bare)}. "
            "Steps lost past the last checkpoint: "
            f"{sum(lost)} (goal 0); by hand {sum(max(0, kill.lost) for kill in bare)}."),
        ],
        {"ours": list(map(asdict, ours)), "bare": list(map(asdict, bare)), "phases": phases},
    )  # fmt: skip


def _ours(
    folder: Path, digits: Path, count: int, chance: random.Random
) -> tuple[list[Kill], list[Phase]]:
    log = folder / "ours.steps"
    with Job(folder, "ours") as job:
        job.train(
            SCRIPTS / "digits.py",
            ["--workers", "2", "--checkpoint-steps", str(_SAVE_STEPS), "--max-restarts", "9"],
            ["--digits", str(digits), "--units", _UNITS, "--batch-size", str(_BATCH),
             "--epochs", "100", "--steps-per-epoch", "1000", "--step-log", str(log)],
            _LEGACY,
        )  # fmt: skip
        with _phases(job) as phases:
            found = [_strike(log, lambda: job.pid("worker-0"), job, chance) for _ in range(count)]
    return found, phases


@contextlib.contextmanager
def _phases(job: Job) -> Iterator[list[Phase]]:
    """Note when the job's status changes during the block."""
    found: list[Phase] = []
    done = threading.Event()

    def follow() -> None:
        last: tuple[object, ...] = ()
        while not done.wait(0.02):
            status = job.status
            present = status.get("state"), status.get("generation"), status.get("restarts")
            if present != last:
                last = present
                found.append({"at": time.time(), "state": present[0], "generation": present[1],
                              "restarts": present[2]})  # fmt: skip

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def _bare(folder: Path, digits: Path, count: int, chance: random.Random) -> list[Kill]:
    log, pids = folder / "bare.steps", folder / "bare.pids"
    first, second = (config["TF_CONFIG"] for config in tf_configs(2))
    with Processes(folder, "bare") as loop:
        loop.start(
            ["bash", str(BARE / "restart.sh"), str(pids), first, second, PYTHON,
             str(BARE / "backup_and_restore.py"), str(digits), _UNITS, str(_BATCH), "100", "1000",
             str(folder / "backup"), str(_SAVE_STEPS), str(log)]
        )  # fmt: skip
        return [
            _strike(log, lambda: int(pids.read_text().split()[1]), loop, chance)
            for _ in range(count)
        ]


def _strike(log: Path, pid: Callable[[], int], job: Processes, chance: random.Random) -> Kill:
    """Kill a process half-way between two checkpoints, and wait for the next step."""
    generation = max(1, begins(log))
    wait_for_begin(log, generation - 1, [job])
    least = around_last_begin(log)[1].number + 2 * _SAVE_STEPS + chance.randrange(_SAVE_STEPS)
    half = range(_SAVE_STEPS // 2 - 2, _SAVE_STEPS // 2 + 3)
    wait_for(lambda: last_step(log) >= least and last_step(log) % _SAVE_STEPS in half, 120, [job])
    at = time.time()
    os.kill(pid(), signal.SIGKILL)
    wait_for_begin(log, generation, [job])
    before, after = around_last_begin(log)
    return Kill(at, before.number, after.at, after.number)


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)
