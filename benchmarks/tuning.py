"""Tuning algorithms on test functions and tables, against Optuna's TPE, Vizier and random search.

usage: tuning.py [--seeds 20] [--trials 20,50,100] [--overhead-trials 1000] [--processes 2]
                 [--algorithms a,b,...] [--vizier-seeds 2] [--vizier-trials 20]
                 [--runs FILE] [--output benchmarks/results/tuning.md]

Vizier takes part if it is installed. Runs in FILE, of the same code, are not repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import _measure
import numpy as np
import optuna
from _problems import FUNCTIONS, PROBLEMS, Problem

from timonel.tuning.samplers import make_sampler
from timonel.tuning.space import SearchSpace

HERE = Path(__file__).parent
PEERS = {"optuna tpe": "TPESampler", "optuna random": "RandomSampler"}
VIZIER = "google-vizier"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Run:
    """One study of an algorithm. Runs with the same seed have the same noise."""

    algorithm: str
    problem: str
    seed: int
    parallel: int
    trials: int


@dataclass(frozen=True)
class Found:
    """Result of a run.

    Attributes:
        best: Noise-free value of the trial that was best with noise, after each trial.
        reached: First trial whose noise-free value is within the target; trials + 1 without one.
    """

    best: list[float]
    reached: int


def sampler_of(algorithm: str, space: SearchSpace, seed: int) -> optuna.samplers.BaseSampler:
    """Return our sampler, or Optuna's for a name of `PEERS`."""
    if algorithm in PEERS:
        return getattr(optuna.samplers, PEERS[algorithm])(seed=seed)
    return make_sampler(algorithm, space, seed=seed)


def execute(run: Run) -> Found:
    """Run a study.

    Of ``parallel`` running trials the oldest ends first, then the next one is proposed.
    """
    problem = next(problem for problem in PROBLEMS if problem.name == run.problem)
    noise = np.random.default_rng(run.seed)
    study = optuna.create_study(sampler=sampler_of(run.algorithm, problem.space, run.seed))
    running: list[tuple[optuna.Trial, float]] = []
    reported: list[tuple[float, float]] = []
    for count in range(run.trials + run.parallel):
        if running and (len(running) == run.parallel or count >= run.trials):
            trial, value = running.pop(0)
            observed = value + problem.noise * noise.standard_normal()
            study.tell(trial, observed)
            reported.append((observed, value))
        if count < run.trials:
            trial = study.ask()
            running.append((trial, problem.function(problem.space.suggest(trial))))
    target = problem.target()
    values = [value for _, value in reported]
    return Found(
        [min(reported[: count + 1])[1] for count in range(run.trials)],
        next((n for n, value in enumerate(values, 1) if value <= target), run.trials + 1),
    )


def overhead_ms(algorithm: str, trials: int, seed: int = 0) -> float:
    """Return milliseconds of CPU time per trial to propose and record, 6 doubles."""
    problem = PROBLEMS[1]
    study = optuna.create_study(sampler=sampler_of(algorithm, problem.space, seed))
    for _ in range(12):  # the first proposals import packages
        trial = study.ask()
        study.tell(trial, problem.function(problem.space.suggest(trial)))
    start = time.process_time()
    for _ in range(trials):
        trial = study.ask()
        study.tell(trial, problem.function(problem.space.suggest(trial)))
    return (time.process_time() - start) * 1000 / trials


def ranks(values: list[float]) -> list[float]:
    """Return ranks from 1; equal values share the mean of their ranks."""
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def execute_all(runs: Sequence[Run], processes: int, kept: Path) -> dict[Run, Found]:
    """Return the results of runs; append new ones to a file as they come."""
    found = {}
    if kept.exists():
        for line in kept.read_text().splitlines():
            run, result = json.loads(line)
            found[Run(*run)] = Found(*result)
    missing = [run for run in runs if run not in found]
    with (
        multiprocessing.get_context("spawn").Pool(processes, be_quiet) as pool,
        kept.open("a") as file,
    ):
        for run, result in pool.imap_unordered(_with_result, missing):
            found[run] = result
            file.write(json.dumps([astuple(run), astuple(result)]) + "\n")
            file.flush()
    return found


def _with_result(run: Run) -> tuple[Run, Found]:
    return run, execute(run)


def be_quiet() -> None:
    """Silence Optuna in this process."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


@dataclass(frozen=True)
class Comparison:
    """Runs of some algorithms, seeds, numbers of trials and problems, as tables."""

    algorithms: list[str]
    seeds: int
    counts: list[int]
    parallel: Sequence[int]
    problems: Sequence[Problem]

    def run(self, algorithm: str, problem: Problem, seed: int, parallel: int) -> Run:
        """Return a run of the longest count."""
        return Run(algorithm, problem.name, seed, parallel, max(self.counts))

    def runs(self) -> list[Run]:
        """Return all runs."""
        return [
            self.run(algorithm, problem, seed, parallel)
            for seed in range(self.seeds)
            for parallel in self.parallel
            for problem in self.problems
            for algorithm in self.algorithms
        ]

    def tables(self, found: dict[Run, Found]) -> list[str]:
        """Return a table for each count of trials, and one of the trials to the target."""
        lines = []
        for parallel in self.parallel:
            where = f"{parallel} in parallel, {self.seeds} seeds"
            for count in self.counts:
                lines += self._table(
                    f"Best value after {count} trials, {where}",
                    lambda run, count=count: found[run].best[count - 1],
                    parallel,
                )
            lines += self._table(
                f"Trials to the best known value within 1 %, at most {max(self.counts)}, {where}",
                lambda run: found[run].reached,
                parallel,
            )
        return lines

    def _table(self, title: str, value: Callable[[Run], float], parallel: int) -> list[str]:
        rows = {
            problem: [
                [value(self.run(name, problem, seed, parallel)) for name in self.algorithms]
                for seed in range(self.seeds)
            ]
            for problem in self.problems
        }
        lines = [
            f"\n### {title}\n",
            "| function | " + " | ".join(self.algorithms) + " |",
            "|---" * (len(self.algorithms) + 1) + "|",
        ]
        for problem, values in rows.items():
            cells = [f"{statistics.median(column):.4g}" for column in zip(*values, strict=True)]
            lines.append(f"| {problem.name} | " + " | ".join(cells) + " |")
        table = [ranks(row) for values in rows.values() for row in values]
        means = [statistics.mean(column) for column in zip(*table, strict=True)]
        return [*lines, "| **mean rank** | " + " | ".join(f"**{m:.2f}**" for m in means) + " |"]


def overhead(algorithms: list[str], trials: int) -> list[str]:
    """Return the table of the time per trial."""
    with multiprocessing.get_context("spawn").Pool(1, be_quiet) as pool:
        times = {name: pool.apply(overhead_ms, (name, trials)) for name in algorithms}
    alone = times["optuna tpe"]
    return [
        f"\n## Overhead per trial, {trials:,} trials of 6 doubles\n",
        "| algorithm | ms per trial | ratio to Optuna's TPE |",
        "|---|---|---|",
        *(f"| {name} | {ms:.2f} | {ms / alone:.2f} |" for name, ms in times.items()),
    ]


def main() -> None:
    """Run everything, print the tables and write them with the machine, its load and the commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", default="20,50,100")
    parser.add_argument("--overhead-trials", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--algorithms", default="bayesian")
    parser.add_argument("--vizier-seeds", type=int, default=2)
    parser.add_argument("--vizier-trials", default="20")
    parser.add_argument("--runs", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "tuning.md")
    options = parser.parse_args()
    os.environ.update(dict.fromkeys(THREADS, "1"))
    algorithms = [*options.algorithms.split(","), *PEERS]
    parts = [Comparison(algorithms, options.seeds, _counts(options.trials), (1, 4), PROBLEMS)]
    if options.vizier_seeds and importlib.util.find_spec("vizier"):
        counts = _counts(options.vizier_trials)
        names = ["bayesian", VIZIER, *PEERS]
        parts.append(Comparison(names, options.vizier_seeds, counts, (1,), FUNCTIONS))
    lines = ["# Tuning algorithms on test functions\n", _about()]
    if options.overhead_trials:
        lines += overhead(algorithms, options.overhead_trials)
    with tempfile.TemporaryDirectory() as folder:
        kept = options.runs or Path(folder) / "runs.jsonl"
        for part, title in zip(parts, ("Optuna", "Vizier"), strict=False):
            found = execute_all(part.runs(), options.processes, kept)
            lines += [f"\n## Against {title}", *part.tables(found)]
    page = "\n".join(lines) + "\n"
    print(page)
    options.output.write_text(page)


def _counts(text: str) -> list[int]:
    return [int(count) for count in text.split(",")]


def _about() -> str:
    return (
        f"Measured {time.strftime('%Y-%m-%d')} at commit {_measure.commit()} on "
        f"{_measure.machine()}, load {os.getloadavg()[0]:.1f} at the start. Smaller is better "
        "everywhere.\n\n"
        "- Values are of the best trial, without noise: the median over the seeds. The mean rank "
        "is over functions and seeds; equal values share a rank.\n"
        "- The distance to the best known value is measured in parts of the distance from it to "
        "the median of 1,001 random points. A trial reaches it within 1 % by its value without "
        "noise. A run that does not reach it counts as one trial more than it had.\n"
        "- The tables hold the cross-validated losses of scikit-learn models: a support-vector "
        "machine on digits, and a network with one hidden layer on breast cancer.\n"
        "- Vizier takes 10 to 30 seconds for a proposal, so it has few seeds and trials.\n"
        "- The overhead is the CPU time to propose and record a trial. BLAS has one thread."
    )


if __name__ == "__main__":
    main()
