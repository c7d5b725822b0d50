"""What checkpoints cost: a job that saves at every 50 steps in turn with one that does not."""

from __future__ import annotations

import statistics

from _contest import Contest, whole_ms
from _inputs import digits_npz, two_kinds_of_jpegs
from _jobs import SCRIPTS, Job, Place
from _rows import Found, Row

from rows.step_time import UNITS_25M

_EVERY = 50
_TURN = 10


def checkpoints(place: Place) -> Found:
    """Both models: the network of the books, and 25 M parameters."""
    folder = place.sub("checkpoints")
    images = two_kinds_of_jpegs(folder / "images", 400)
    digits = digits_npz(folder / "digits.npz", side=32)
    pairs = 2 if place.quick else 8
    small = _compare(place, "cats_and_dogs", ["--images", str(images)], pairs)
    dense = ["--digits", str(digits), "--units", UNITS_25M, "--batch-size", "64"]
    large = _compare(place, "digits", dense, pairs)
    return Found(
        [_row("cats-and-dogs CNN", small), _row("25 M parameters", large)],
        [
            (
                f"Checkpoints: {pairs} times {_EVERY} steps, in turns of {_TURN}; the checkpoint "
                "lies in the middle of a turn, so that what is written beside training falls into "
                "that. The CNN's has 6.9 million values, that of the other model 25 million."
            )
        ],
    )


def _row(what: str, found: tuple[list[float], list[float]]) -> Row:
    name = f"step with a checkpoint every {_EVERY} steps, {what}"
    return Row(name, "ms", *found, rival="without", most=1.03)


def _compare(
    place: Place, script: str, shape: list[str], pairs: int
) -> tuple[list[float], list[float]]:
    """Return the mean steps of both jobs, each over one checkpoint."""
    folder = place.sub(f"checkpoints-{script}")
    each = _EVERY // _TURN
    contest = Contest(folder, 2, _TURN, 1 + each * pairs, first=_TURN // 2)
    shape = [*shape, "--steps-per-epoch", str(contest.total)]
    with Job(folder, "with") as saving, Job(folder, "without") as plain:
        for side, job in enumerate((saving, plain)):
            flags = ["--checkpoint-steps", str(_EVERY)] if job is saving else []
            turns = ["--turns", contest.options(side)]
            job.train(SCRIPTS / f"{script}.py", flags, [*shape, *turns])
        ours, theirs = map(whole_ms, contest.run([saving, plain], tasks=2, seconds=900))
    return _means(ours, each), _means(theirs, each)


def _means(values: list[float], size: int) -> list[float]:
    return [statistics.fmean(values[at : at + size]) for at in range(0, len(values), size)]
