"""Samplers that propose complete points, and a search space as a unit cube.

Optuna's samplers choose one parameter after another, so they cannot reject a combination of values.
A point is chosen as a whole: it satisfies the constraints and differs from those of running trials.

    P parameters of a space, F features of a model
    positions float [n, P]   each parameter on its scale in [0, 1], inactive ones at 0.5
    features  float [n, F]   positions, with one-hot columns for categorical parameters
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from timonel.tuning.space import Parameter, SearchSpace, Value

Array = npt.NDArray[np.float64]
INACTIVE = 0.5
_LISTED_INTEGERS = 1000
"""Integer ranges up to this size are snapped to their values, wider ones are continuous."""


class PointSampler(BaseSampler):
    """Base of samplers that choose all values of a trial at once.

    An instance serves one study and one thread.
    """

    size: int | None = None
    """Number of points that it proposes; None without a limit."""

    def __init__(self, space: SearchSpace, *, seed: int | None = None) -> None:
        self.space = space
        self._distributions = space.distributions()
        self._others = RandomSampler(seed=seed)

    @abstractmethod
    def propose(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        """Return the active parameters' values for a new trial."""

    def infer_relative_search_space(
        self,
        study: Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Return all parameters, active or not."""
        return self._distributions

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the proposed point by Optuna's parameter names."""
        return self.space.params_of(self.propose(study, trial))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value for a parameter outside the proposed point."""
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def point_of(self, trial: FrozenTrial) -> dict[str, Value] | None:
        """Return a trial's active values, None if it has too few parameters."""
        values = self.space.values_of(trial.params)
        names = [p.name for p in self.space.parameters if self.space.is_active(p, values)]
        return {name: values[name] for name in names} if values.keys() >= set(names) else None

    def running(self, study: Study, trial: FrozenTrial) -> list[dict[str, Value]]:
        """Return the points of the other running trials."""
        trials = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        points = (self.point_of(other) for other in trials if other.number != trial.number)
        return [point for point in points if point is not None]


class UnitCube:
    """Search space as positions in the unit cube."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.parameters = space.parameters
        self.size = len(space.parameters)
        self.is_categorical = np.array([p.kind == "categorical" for p in self.parameters], bool)
        self._levels = [_levels(parameter) for parameter in self.parameters]
        self._children = _children(self.parameters)

    def draw(self, uniform: Array) -> Array:
        """Return positions for uniform numbers [n, P]; all listed values are equally likely."""
        positions = uniform.copy()
        for column, (parameter, levels) in enumerate(
            zip(self.parameters, self._levels, strict=True)
        ):
            if levels is not None and parameter.kind in {"categorical", "discrete"}:
                index = np.minimum(uniform[:, column] * len(levels), len(levels) - 1)
                positions[:, column] = levels[index.astype(np.int64)]
        return self.snap(positions)

    def snap(self, positions: Array) -> Array:
        """Move positions to the nearest values, and those of inactive parameters to 0.5."""
        snapped = np.clip(positions, 0.0, 1.0)
        for column, levels in enumerate(self._levels):
            if levels is not None:
                middles = (levels[1:] + levels[:-1]) / 2
                snapped[:, column] = levels[np.searchsorted(middles, snapped[:, column])]
        active = np.ones(snapped.shape, bool)
        for column, parent, allowed in self._children:
            distance = np.abs(snapped[:, parent, None] - allowed).min(axis=1)
            active[:, column] = active[:, parent] & (distance < 1e-9)
        snapped[~active] = INACTIVE
        return snapped

    def features(self, positions: Array) -> Array:
        """Return a model's features [n, F]; two categories are at distance 1."""
        columns = []
        for column, levels in enumerate(self._levels):
            if self.is_categorical[column] and levels is not None:
                hot = np.abs(positions[:, column, None] - levels) < 1e-9
                columns.append(hot * np.sqrt(0.5))
            else:
                columns.append(positions[:, column, None])
        return np.hstack(columns)

    def position(self, point: Mapping[str, Value]) -> Array:
        """Return the position [P] of a point."""
        return np.array(
            [p.to_unit(point[p.name]) if p.name in point else INACTIVE for p in self.parameters]
        )

    def point(self, position: Array) -> dict[str, Value]:
        """Return the active values at a position [P]."""
        point: dict[str, Value] = {}
        for parameter, unit in zip(self.parameters, position, strict=True):
            if self.space.is_active(parameter, point):
                point[parameter.name] = parameter.from_unit(float(unit))
        return point


def first_free(
    cube: UnitCube, positions: Iterable[Array], taken: list[dict[str, Value]]
) -> dict[str, Value] | None:
    """Return the first position's point that is feasible and not taken, None without one."""
    for position in positions:
        point = cube.point(position)
        if cube.space.violated(point) is None and point not in taken:
            return point
    return None


def sobol_point(size: int, number: int, seed: int) -> Array:
    """Return one point [1, size] of a scrambled Sobol sequence."""
    from scipy.stats import qmc  # type: ignore[import-untyped]  # noqa: PLC0415 - loads on use

    sequence = qmc.Sobol(size, scramble=True, rng=seed)
    if number:
        sequence.fast_forward(number)
    return np.asarray(sequence.random(1))


def _levels(parameter: Parameter) -> Array | None:
    """Positions of a parameter's values, None if it is continuous."""
    choices = parameter.choices
    if choices is None or (parameter.kind == "integer" and len(choices) > _LISTED_INTEGERS):
        return None
    return np.array([parameter.to_unit(value) for value in choices])


def _children(parameters: tuple[Parameter, ...]) -> list[tuple[int, int, Array]]:
    """Columns of child and parent, and the parent's positions that activate the child."""
    columns = {parameter.name: column for column, parameter in enumerate(parameters)}
    children = []
    for column, parameter in enumerate(parameters):
        # A fixed parent always activates its children.
        if parameter.parent in columns:
            parent = columns[parameter.parent]
            units = [parameters[parent].to_unit(value) for value in parameter.parent_values]
            children.append((column, parent, np.array(units)))
    return children
