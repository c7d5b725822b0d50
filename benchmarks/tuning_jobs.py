"""Studies of real training jobs: what stopping rules save, and what a study costs.

Both parts train a convolutional network on scikit-learn's handwritten digits, one thread for each
of four processes at a time.

usage: tuning_jobs.py [--only PART ...] [--quick] [--output benchmarks/results/tuning_jobs.md]
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import _parts
from _inputs import digits_npz
from _jobs import PYTHON, SCRIPTS, TIMONEL, BenchmarkError, Place, end_what_is_left
from _parts import Document
from _rows import Found, Row

from timonel.storage import find_workspace
from timonel.tuning import Study, open_study

HERE = Path(__file__).parent
SCRIPT = SCRIPTS / "tuned_digits.py"
RULES = ("median", "decay-curve", "hyperband")
_PARALLEL = 4
_RATES = (0.003, 0.005, 0.008, 0.012)


def early_stopping(place: Place) -> Found:
    """Run the same study without a rule and with each rule, seed by seed."""
    folder = place.sub("early-stopping")
    seeds, trials, epochs = (1, 6, 3) if place.quick else (3, 24, 27)
    _study(folder, "warm-up", ["learning-rate=log(1e-3,1e-2)"], trials=1, epochs=1)
    walls: dict[str, list[float]] = {rule: [] for rule in ("none", *RULES)}
    done: dict[str, list[int]] = {rule: [] for rule in walls}
    bests: dict[str, list[float]] = {rule: [] for rule in walls}
    for seed in range(seeds):
        # Each rule comes first in turn: the load of the machine changes.
        for rule in _rotated(list(walls), seed):
            wall_s, study = _study(
                folder,
                f"{rule}-{seed}",
                ["learning-rate=log(1e-4,1)", "units=int(8,128,log)"],
                "--algorithm", "random", "--seed", str(seed),
                "--stopping-rule", rule, "--max-steps", str(epochs),
                trials=trials, epochs=epochs,
            )  # fmt: skip
            walls[rule].append(wall_s)
            done[rule].append(sum(len(trial.curve) for trial in study.trials))
            bests[rule].append(study.best_trials[0].values[0])
            _say(f"{rule} {seed}: {wall_s:.0f} s, {done[rule][-1]} epochs, {bests[rule][-1]:.4f}")
    rows = [
        Row(
            f"wall time of {trials} trials with {rule}", "s", walls[rule], walls["none"],
            "no rule", most=0.6,
        )
        for rule in RULES
    ]  # fmt: skip
    table = [_means(rule, walls, done, bests) for rule in walls]
    remark = (
        f"Early stopping: {trials} trials of {epochs} epochs, {_PARALLEL} in parallel, {seeds} "
        "seeds, random search: the trials of a seed have the same values with every rule. "
        "Means over the seeds: " + "; ".join(table) + "."
    )
    return Found(rows, [remark], {"wall_s": walls, "epochs": done, "best": bests})


def parallel_trials(place: Place) -> Found:
    """Run four trials as one study, and the same four scripts by hand, in turn."""
    folder = place.sub("parallel")
    rounds, epochs = (1, 1) if place.quick else (5, 27)
    digits = digits_npz(folder / "digits.npz", side=16)
    rates = ",".join(map(str, _RATES))
    walls: dict[str, list[float]] = {"first": [], "later": [], "by hand": [], "by hand again": []}
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="timonel-run-") as runtime:
            # A runtime folder of its own holds no warm parent yet; the second study finds it.
            sides = {
                "first": functools.partial(
                    _four_trials, folder, f"a{number}", rates, epochs, runtime
                ),
                "by hand": functools.partial(_by_hand, digits, epochs),
                "later": functools.partial(
                    _four_trials, folder, f"b{number}", rates, epochs, runtime
                ),
                "by hand again": functools.partial(_by_hand, digits, epochs),
            }
            for side, run in sides.items():
                walls[side].append(run())
                _say(f"{side} {number}: {walls[side][-1]:.1f} s")
            end_what_is_left(Path(runtime))
    bare = f"{_PARALLEL} bare processes"
    return Found(
        [
            Row("4 trials, after an earlier job", "s", walls["later"], walls["by hand again"],
                bare, most=1.1),
            Row("4 trials, the first job", "s", walls["first"], walls["by hand"], bare, most=1.1),
        ],
        [
            (
                f"Parallel trials: {epochs} epochs each, {rounds} rounds of the four in turn. The "
                "study's time is that of its command; its trials also save a checkpoint after each "
                "epoch, export the model and record metrics, the bare processes none of these."
            )
        ],
        {"wall_s": walls},
    )  # fmt: skip


def _four_trials(folder: Path, name: str, rates: str, epochs: int, runtime: str) -> float:
    wall_s, _ = _study(
        folder, name, [f"learning-rate=values({rates})"], "--algorithm", "grid",
        trials=_PARALLEL, epochs=epochs, env={"XDG_RUNTIME_DIR": runtime},
    )  # fmt: skip
    return wall_s


def _by_hand(digits: Path, epochs: int) -> float:
    flags = ["--digits", str(digits), "--epochs", str(epochs), "--threads", "1"]
    began = time.perf_counter()
    processes = [
        subprocess.Popen(
            [PYTHON, str(SCRIPT), *flags, f"--learning-rate={rate}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rate in _RATES
    ]  # fmt: skip
    for process in processes:
        output, _ = process.communicate()
        if process.returncode:
            raise BenchmarkError(f"a bare process failed: {output[-500:]}")
    return time.perf_counter() - began


def _study(
    folder: Path,
    name: str,
    space: Sequence[str],
    *flags: str,
    trials: int,
    epochs: int,
    env: Mapping[str, str] | None = None,
) -> tuple[float, Study]:
    """Run a study with the command; return its wall time and the study."""
    digits = folder / "digits.npz"
    if not digits.exists():
        digits_npz(digits, side=16)
    workspace = folder / "workspace"
    params = [word for text in space for word in ("--param", text)]
    command = [
        TIMONEL, "-w", str(workspace), "tune", str(SCRIPT), *params, *flags,
        "--metric", "val_accuracy", "--trials", str(trials), "--parallel", str(_PARALLEL),
        "--threads", "1", "--study", name, "--", "--digits", str(digits), "--epochs", str(epochs),
    ]  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise BenchmarkError(f"the study {name} failed: {(done.stdout + done.stderr)[-500:]}")
    study = open_study(find_workspace(workspace), name)
    failed = [trial.reason for trial in study.trials if trial.status == "failed"]
    if failed:
        raise BenchmarkError(f"trials of {name} failed: {failed[0]}")
    return wall_s, study


def _means(
    rule: str,
    walls: Mapping[str, Sequence[float]],
    done: Mapping[str, Sequence[int]],
    bests: Mapping[str, Sequence[float]],
) -> str:
    wall_s, epochs, best = (statistics.mean(found[rule]) for found in (walls, done, bests))
    saved = 1 - wall_s / statistics.mean(walls["none"])
    lost = sum(a < b for a, b in zip(bests[rule], bests["none"], strict=True))
    told = f"{rule}: {wall_s:.0f} s, {epochs:.0f} epochs, best value {best:.4f}"
    if rule == "none":
        return told
    return f"{told}, {saved:.0%} of the time saved, the best trial stopped with {lost} seeds"


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _say(line: str) -> None:
    print(f"{line} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)


Part = Callable[[Place], Found]
PARTS: dict[str, Part] = {"early-stopping": early_stopping, "parallel-trials": parallel_trials}


def main() -> None:
    """Measure, and write and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART",
                        help=", ".join(PARTS))  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="try it out: few epochs, not written")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "tuning_jobs.md")
    options = parser.parse_args()
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TIMONEL_MIRRORS="none")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _parts.run(
        measure(options.only or list(PARTS), quick=options.quick),
        order=PARTS,
        report=report,
        output=options.output,
        keep=bool(options.only),
        written=not options.quick,
    )


def measure(names: Sequence[str], *, quick: bool) -> Iterator[tuple[str, Document]]:
    """Measure some parts; yield each with its result or its failure."""
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as scratch:
        runtime = Path(scratch) / "runtime"
        runtime.mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)  # warm parents of its own
        try:
            for name in names:
                part = functools.partial(PARTS[name], Place(Path(scratch), quick))
                yield name, _parts.measure_part(name, part)
        finally:
            end_what_is_left(Path(scratch))


def report(parts: Mapping[str, Document]) -> str:
    """Return the results as a Markdown page."""
    intro = (
        f"Measured {_parts.measured_at(parts)}, load {_parts.loads(parts)}. The ratio is the "
        "median of the ratios of the pairs, timonel's figure divided by the other."
    )
    lines = ["# Studies of real training jobs", "", intro, "", *_parts.table(parts)]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in _parts.remarks(parts)), ""])


if __name__ == "__main__":
    main()
