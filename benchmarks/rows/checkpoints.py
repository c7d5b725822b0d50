"""What checkpoints cost: a job that saves at every 50 steps in turn with one that does not."""

from __future__ import annotations

from _contest import Contest, whole_ms
from _inputs import digits_npz, two_kinds_of_jpegs
from _jobs import SCRIPTS, Job, Place
from _rows import Found, Row

from rows.step_time import UNITS_25M

_EVERY = 50


def checkpoints(place: Place) -> Found:
    """Both models: the network of the books, and 25 M parameters."""
    folder = place.sub("checkpoints")
    images = two_kinds_of_jpegs(folder / "images", 400)
    digits = digits_npz(folder / "digits.npz", side=32)
    rounds = 3 if place.quick else 5
    small = _compare(place, "cats_and_dogs", ["--images", str(images)], rounds=rounds, every=_EVERY)
    dense = ["--digits", str(digits), "--units", UNITS_25M, "--batch-size", "64"]
    large = _compare(place, "digits", dense, rounds=2 * rounds - 1, every=_EVERY)
    return Found(
        [_row("cats-and-dogs CNN", small), _row("25 M parameters", large)],
        [
            (
                f"Checkpoints: turns of {_EVERY} steps, each with one checkpoint in its middle, so "
                "that what is written beside training falls into the turn that it belongs to."
            )
        ],
    )


def _row(what: str, found: tuple[list[float], list[float]]) -> Row:
    name = f"step with a checkpoint every {_EVERY} steps, {what}"
    return Row(name, "ms", *found, rival="without", most=1.03)


def _compare(
    place: Place, script: str, shape: list[str], *, rounds: int, every: int
) -> tuple[list[float], list[float]]:
    folder = place.sub(f"checkpoints-{script}")
    contest = Contest(folder, 2, every, rounds, first=every // 2)
    shape = [*shape, "--steps-per-epoch", str(contest.total)]
    with Job(folder, "with") as saving, Job(folder, "without") as plain:
        for side, job in enumerate((saving, plain)):
            flags = ["--checkpoint-steps", str(every)] if job is saving else []
            turns = ["--turns", contest.options(side)]
            job.train(SCRIPTS / f"{script}.py", flags, [*shape, *turns])
        times = contest.run([saving, plain], tasks=2, seconds=900)
    return whole_ms(times[0]), whole_ms(times[1])
