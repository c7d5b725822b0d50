"""Tuning algorithms on test functions, against Optuna's default (TPE) and random search.

usage: tuning.py [--seeds 20] [--trials 20,50] [--overhead-trials 1000] [--algorithms a,b,...]
                 [--output benchmarks/results/tuning.md]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _measure
import numpy as np
import optuna

from timonel.tuning.samplers import make_sampler
from timonel.tuning.space import Parameter, SearchSpace

Values = Mapping[str, Any]
HERE = Path(__file__).parent
PEERS = {"optuna tpe": "TPESampler", "optuna random": "RandomSampler"}


@dataclass(frozen=True)
class Problem:
    """A function to minimise; noise is what a trial reports on top of the value."""

    name: str
    space: SearchSpace
    function: Callable[[Values], float]
    noise: float = 0.0


def doubles(size: int, low: float, high: float) -> SearchSpace:
    """Return a space of ``size`` doubles x0, x1, ..."""
    return space_of(*(Parameter(f"x{i}", "double", low, high) for i in range(size)))


def space_of(*parameters: Parameter) -> SearchSpace:
    """Return a space without fixed values and constraints."""
    return SearchSpace(parameters=parameters, fixed={}, constraints=())


def vector(values: Values) -> np.ndarray:
    """Return x0, x1, ... as an array."""
    return np.array([values[f"x{i}"] for i in range(len(values))])


def branin(values: Values) -> float:
    a, b = values["a"], values["b"]
    bowl = (b - 5.1 / (4 * math.pi**2) * a**2 + 5 / math.pi * a - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10


_A = np.array([[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14],
               [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]])  # fmt: skip
_P = 1e-4 * np.array([[1312, 1696, 5569, 124, 8283, 5886],
                      [2329, 4135, 8307, 3736, 1004, 9991],
                      [2348, 1451, 3522, 2883, 3047, 6650],
                      [4047, 8828, 8732, 5743, 1091, 381]])  # fmt: skip


def hartmann(values: Values) -> float:
    inner = (_A * (vector(values) - _P) ** 2).sum(axis=1)
    return float(-np.array([1.0, 1.2, 3.0, 3.2]) @ np.exp(-inner))


def rosenbrock(values: Values) -> float:
    x = vector(values)
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def ackley(values: Values) -> float:
    # Shifted, so that the minimum is neither the centre nor on the diagonal.
    x = vector(values) - np.linspace(-8, 11, len(values))
    waves = np.exp(np.cos(2 * math.pi * x).mean())
    return float(-20 * np.exp(-0.2 * math.sqrt((x**2).mean())) - waves + 20 + math.e)


def mixed(values: Values) -> float:
    """Imitate a training job: optimizer, learning rate, units, dropout, batch size, momentum."""
    best_rate = {"sgd": -1.0, "adam": -3.0, "rmsprop": -3.3, "adagrad": -1.7}[values["optimizer"]]
    loss = {"sgd": 0.05, "adam": 0.0, "rmsprop": 0.03, "adagrad": 0.12}[values["optimizer"]]
    loss += {"relu": 0.02, "gelu": 0.0, "tanh": 0.08}[values["activation"]]
    loss += 0.15 * (math.log10(values["lr"]) - best_rate) ** 2
    loss += 0.1 * (math.log2(values["units"]) - 7) ** 2 / 4
    loss += 0.8 * (values["dropout"] - 0.3 * math.log2(values["units"]) / 8) ** 2
    loss += 0.02 * abs(math.log2(values["batch"] / 64))
    return loss + (0.3 * (values["momentum"] - 0.9) ** 2 if "momentum" in values else 0.0)


PROBLEMS = (
    Problem("Branin", space_of(Parameter("a", "double", -5, 10), Parameter("b", "double", 0, 15)),
            branin),
    Problem("Hartmann 6-d", doubles(6, 0, 1), hartmann),
    Problem("Rosenbrock 5-d", doubles(5, -5, 10), rosenbrock),
    Problem("Ackley 10-d, noisy", doubles(10, -32.768, 32.768), ackley, noise=0.5),
    Problem(
        "mixed, conditional",
        space_of(
            Parameter("optimizer", "categorical", values=("sgd", "adam", "rmsprop", "adagrad")),
            Parameter("activation", "categorical", values=("relu", "gelu", "tanh")),
            Parameter("lr", "double", 1e-5, 1.0, scale="log"),
            Parameter("units", "integer", 16, 512, scale="log"),
            Parameter("dropout", "double", 0.0, 0.7),
            Parameter("batch", "discrete", values=(16, 32, 64, 128, 256)),
            Parameter("momentum", "double", 0.0, 0.99, parent="optimizer", parent_values=("sgd",)),
        ),
        mixed,
        noise=0.005,
    ),
)  # fmt: skip


def sampler_of(algorithm: str, space: SearchSpace, seed: int) -> optuna.samplers.BaseSampler:
    """Return our sampler, or Optuna's for a name of `PEERS`."""
    if algorithm in PEERS:
        return getattr(optuna.samplers, PEERS[algorithm])(seed=seed)
    return make_sampler(algorithm, space, seed=seed)


def best_values(
    algorithm: str, problem: Problem, seed: int, parallel: int, counts: list[int]
) -> list[float]:
    """Return the noise-free value of the best trial after each count of trials.

    Of ``parallel`` running trials the oldest ends first, then the next one is proposed.
    """
    noise = np.random.default_rng(seed)
    study = optuna.create_study(sampler=sampler_of(algorithm, problem.space, seed))
    running: list[tuple[optuna.Trial, float]] = []
    reported: list[tuple[float, float]] = []
    for count in range(max(counts) + parallel):
        if len(running) == parallel or count >= max(counts):
            if not running:
                break
            trial, value = running.pop(0)
            observed = value + problem.noise * noise.standard_normal()
            study.tell(trial, observed)
            reported.append((observed, value))
        if count < max(counts):
            trial = study.ask()
            running.append((trial, problem.function(problem.space.suggest(trial))))
    return [min(reported[:count])[1] for count in counts]


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


def ranking(algorithms: list[str], seeds: int, parallel: int, counts: list[int]) -> list[str]:
    """Return a table for each count of trials."""
    found = {
        (problem.name, seed): [
            best_values(name, problem, seed, parallel, counts) for name in algorithms
        ]
        for problem in PROBLEMS
        for seed in range(seeds)
    }
    lines = []
    for place, count in enumerate(counts):
        lines += [
            f"\n## Best value after {count} trials, {parallel} in parallel\n",
            "| function | " + " | ".join(algorithms) + " |",
            "|---" * (len(algorithms) + 1) + "|",
        ]
        for problem in PROBLEMS:
            cells = [
                statistics.median(found[problem.name, s][i][place] for s in range(seeds))
                for i in range(len(algorithms))
            ]
            lines.append(f"| {problem.name} | " + " | ".join(f"{c:.4g}" for c in cells) + " |")
        table = [ranks([values[place] for values in row]) for row in found.values()]
        means = [statistics.mean(column) for column in zip(*table, strict=True)]
        lines.append("| **mean rank** | " + " | ".join(f"**{mean:.2f}**" for mean in means) + " |")
    return lines


def overhead(algorithms: list[str], trials: int) -> list[str]:
    """Return the table of the time per trial."""
    times = {name: overhead_ms(name, trials) for name in algorithms}
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
    parser.add_argument("--trials", default="20,50")
    parser.add_argument("--overhead-trials", type=int, default=1000)
    parser.add_argument("--algorithms", default="bayesian,tpe,qmc")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "tuning.md")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    algorithms = [*options.algorithms.split(","), *PEERS]
    counts = [int(count) for count in options.trials.split(",")]
    about = (
        f"Measured {time.strftime('%Y-%m-%d')} at commit {_measure.commit()} on "
        f"{_measure.machine()}, load {os.getloadavg()[0]:.1f} at the start, {options.seeds} seeds. "
        "Smaller is better everywhere. Values are of the best trial, without noise: the median "
        "over the seeds. The mean rank is over functions and seeds. The overhead is the CPU "
        "time to propose and record a trial; BLAS has one thread."
    )
    lines = ["# Tuning algorithms on test functions\n", about]
    for parallel in (1, 4):
        lines += ranking(algorithms, options.seeds, parallel, counts)
    if options.overhead_trials:
        lines += overhead(algorithms, options.overhead_trials)
    page = "\n".join(lines) + "\n"
    print(page)
    options.output.write_text(page)


if __name__ == "__main__":
    main()
