"""The loss of a job that is killed again and again, on that of one that nobody disturbs."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import numpy as np
from _inputs import digits_npz
from _jobs import SCRIPTS, BenchmarkError, Job, Place, wait_for
from _rows import Found
from _steps import around_last_begin, begins, last_step, read_steps, wait_for_begin

_SAVE_STEPS = 20
_UNITS = "1024,1024"
_BATCH = 128
_EPOCHS, _STEPS = 6, 50


def curve(place: Place) -> Found:
    """Train twice, and compare each step and the weights at the end."""
    folder = place.sub("curve")
    digits = digits_npz(folder / "digits.npz")
    count = 2 if place.quick else 5
    whole, _ = _trained(folder, digits, "whole", 0)
    killed, moments = _trained(folder, digits, "killed", count)
    series = {name: _losses(folder / f"{name}.steps") for name in ("whole", "killed")}
    repeated = sum(len(losses) - 1 for losses in series["killed"].values())
    apart = max(
        abs(loss - series["whole"][number][0])
        for number, losses in series["killed"].items()
        for loss in losses
    )
    if series["killed"].keys() != series["whole"].keys():
        raise BenchmarkError("the killed job trained other steps than the one that was left alone")
    weights = float(np.abs(whole - killed).max())
    return Found(
        remarks=[
            (
                f"Curve: two workers, {len(series['whole'])} steps, killed {count} times: its "
                "losses differ from those of the job that was left alone by at most "
                f"{apart:.1e}, the weights at the end by {weights:.1e}; {repeated} steps were "
                "trained twice."
            )
        ],
        data={
            "whole": {number: losses[0] for number, losses in series["whole"].items()},
            "killed": {number: losses[-1] for number, losses in series["killed"].items()},
            "kills": moments,
            "losses_apart": apart,
            "weights_apart": weights,
            "repeated": repeated,
        },
    )


def _trained(
    folder: Path, digits: Path, name: str, kills: int
) -> tuple[np.ndarray, list[dict[str, object]]]:
    """Train once, killed so many times; return the weights and the kills."""
    log, weights = folder / f"{name}.steps", folder / f"{name}.npz"
    moments: list[dict[str, object]] = []
    chance = random.Random(11)
    with Job(folder, name) as job:
        job.train(
            SCRIPTS / "digits.py",
            ["--workers", "2", "--checkpoint-steps", str(_SAVE_STEPS), "--max-restarts", "9",
             "--seed", "1", "--deterministic"],
            ["--digits", str(digits), "--units", _UNITS, "--batch-size", str(_BATCH),
             "--epochs", str(_EPOCHS), "--steps-per-epoch", str(_STEPS), "--shuffle",
             "--step-log", str(log), "--weights", str(weights)],
        )  # fmt: skip
        total = _EPOCHS * _STEPS
        for number in range(kills):
            due = chance.randrange(total * number // kills + 3, total * (number + 1) // kills - 3)
            wait_for(lambda due=due: last_step(log) >= due, 120, [job])
            target = chance.choice(("chief-0", "worker-0"))
            begun = begins(log)
            os.kill(job.pid(target), signal.SIGKILL)
            wait_for_begin(log, begun, [job])
            moments.append({"step": around_last_begin(log)[0].number, "task": target})
        job.wait(180)
    with np.load(weights) as file:
        return np.concatenate([file[key].ravel() for key in file.files]), moments


def _losses(log: Path) -> dict[int, list[float]]:
    """Return the losses of each step, as often as it was trained."""
    found: dict[int, list[float]] = {}
    for step in read_steps(log):
        if step.number:
            found.setdefault(step.number, []).append(step.loss)
    return found
