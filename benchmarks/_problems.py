"""Functions and tables that tuning algorithms minimise in the benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from _tables import MLP, SVM, read_table

from timonel.tuning.points import UnitCube
from timonel.tuning.space import Parameter, SearchSpace

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """A function to minimise, its best value, and the noise that a trial reports on top."""

    name: str
    space: SearchSpace
    function: Callable[[Values], float]
    best: float = 0.0
    noise: float = 0.0

    def target(self) -> float:
        """Return the value within 1 % of the best one.

        100 % is the distance from the best value to the median of 1,001 random ones.
        """
        cube = UnitCube(self.space)
        positions = cube.draw(np.random.default_rng(0).random((1001, cube.size)))
        typical = float(np.median([self.function(cube.point(p)) for p in positions]))
        return self.best + 0.01 * (typical - self.best)


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


def table(name: str, space: SearchSpace) -> Problem:
    """Return the problem of a committed table."""
    losses = read_table(name)
    names = [parameter.name for parameter in space.parameters]
    return Problem(
        f"{name.replace('_', ' ')}, table",
        space,
        lambda values: losses[tuple(str(values[name]) for name in names)],
        min(losses.values()),
    )


FUNCTIONS = (
    Problem("Branin", space_of(Parameter("a", "double", -5, 10), Parameter("b", "double", 0, 15)),
            branin, 0.397887),
    Problem("Hartmann 6-d", doubles(6, 0, 1), hartmann, -3.32237),
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
PROBLEMS = (*FUNCTIONS, table("digits", SVM), table("breast_cancer", MLP))
