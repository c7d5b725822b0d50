"""The time of a step: of one process, and of two workers with compressed gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from _contest import Contest, Rounds, step_ms, whole_ms
from _inputs import digits_npz, two_kinds_of_jpegs
from _jobs import BARE, PYTHON, SCRIPTS, Job, Place, Processes
from _main_job import tf_configs
from _rows import Found, Row

UNITS_25M = "4096,4096,1024"
"""With 1024 features and 10 classes: 25.2 million parameters."""
_ACTIVATION = "tanh"
"""A smooth one. Rounding decides on which side of its bend a ReLU is: with ReLUs the weights of two
runs in float32 that sum in another order are 1e-4 apart after 70 steps, whatever travels."""
_BATCH = 32
_RATE = 0.01


def one_process(place: Place) -> Found:
    """The network of the books: the same script by ``timonel train`` and by ``python``."""
    folder = place.sub("one-process")
    images = two_kinds_of_jpegs(folder / "images", 200 if place.quick else 400)
    steps, rounds = (5, 3) if place.quick else (20, 9)
    contest = Contest(folder, 2, steps, rounds)
    script = SCRIPTS / "cats_and_dogs.py"
    shape = ["--images", str(images), "--epochs", str(rounds)]
    if place.quick:
        shape += ["--steps-per-epoch", str(steps)]
    with Job(folder, "ours") as ours, Processes(folder, "bare") as bare:
        ours.train(script, [], [*shape, "--turns", contest.options(0)])
        bare.start([PYTHON, str(script), *shape, "--turns", contest.options(1)])
        mine, theirs = contest.run([ours, bare], tasks=2, seconds=900)
    return Found(
        [
            Row("step, one process, cats-and-dogs CNN", "ms", step_ms(mine), step_ms(theirs),
                "the same script, bare", most=1.02),
            Row(f"the same with the ends of its epochs of {steps} steps", "ms", whole_ms(mine),
                whole_ms(theirs), "the same script, bare"),
        ],
        [
            (f"One process: {rounds - 1} turns of {steps} steps each, batches of 20. The end of an "
            "epoch holds a checkpoint on our side, of 6.9 million values.")
        ],
    )  # fmt: skip


def two_workers(place: Place) -> Found:
    """25 M parameters: compressed, and as they are, against float32 by hand."""
    folder = place.sub("two-workers")
    digits = digits_npz(folder / "digits.npz", side=32)
    steps, rounds = (4, 3) if place.quick else (10, 7)
    contest = Contest(folder, 3, steps, rounds)
    jobs = {
        side: Job(folder, f"ours-{name}")
        for side, name in enumerate(("compressed", "float32"))
    }  # fmt: skip
    common = ["--digits", str(digits), "--units", UNITS_25M, "--batch-size", str(_BATCH)]
    common += ["--activation", _ACTIVATION]
    common += ["--learning-rate", str(_RATE), "--steps-per-epoch", str(contest.total)]
    with jobs[0], jobs[1], Processes(folder, "bare") as bare:
        for side, job in jobs.items():
            flags = ["--compress-gradients", "bfloat16"] if side == 0 else []
            turns = ["--turns", contest.options(side), "--weights", str(folder / f"{side}.npz")]
            job.train(SCRIPTS / "digits.py", ["--workers", "2", *flags], [*common, *turns])
        command = [
            PYTHON, str(BARE / "dense_mwms.py"), str(digits), UNITS_25M, _ACTIVATION, str(_BATCH),
            str(_RATE), contest.options(2), str(folder / "2.npz"),
        ]  # fmt: skip
        for env in tf_configs(2):
            bare.start(command, env)
        times = contest.run([*jobs.values(), bare], tasks=6, seconds=900)
    return Found(_two_workers_rows(times), [_weights(folder, contest.total)])


def _two_workers_rows(times: list[Rounds]) -> list[Row]:
    compressed, plain, bare = map(step_ms, times)
    rival = "bare MWMS, float32"
    return [
        Row("step, two workers, 25 M parameters, bfloat16 gradients", "ms", compressed, bare,
            rival, most=0.45),
        Row("the same without compression", "ms", plain, bare, rival),
    ]  # fmt: skip


def _weights(folder: Path, steps: int) -> str:
    compressed, plain, bare = (_flat(folder / f"{side}.npz") for side in range(3))
    start = max(float(np.abs(bare).max()), 1e-9)
    apart = float(np.abs(compressed - bare).max())
    verdict = "within" if apart <= 1e-4 else "**not** within"
    return (
        f"Two workers: after {steps} steps (SGD at {_RATE}, batches of {_BATCH}, {_ACTIVATION}) "
        f"the compressed job's weights differ from the bare float32 ones by at most {apart:.1e}, "
        f"{verdict} the goal of 1e-4; those of our float32 job by "
        f"{float(np.abs(plain - bare).max()):.1e}. The "
        f"greatest weight is {start:.2g}."
    )


def _flat(path: Path) -> np.ndarray:
    with np.load(path) as file:
        return np.concatenate([file[name].ravel() for name in file.files])
