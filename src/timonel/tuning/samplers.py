"""Tuning algorithms by name, as Optuna samplers.

All algorithms propose complete points: the constraints of the space hold, and a point differs from
those of running trials wherever the space has another one.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from optuna import samplers
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from timonel.errors import MissingExtraError, SpecError, did_you_mean
from timonel.tuning.bayesian import BayesianSampler
from timonel.tuning.points import PointSampler, UnitCube, first_free, sobol_point
from timonel.tuning.space import Parameter, SearchSpace, Value
from timonel.tuning.tune_options import ALGORITHMS
from timonel.tuning.vizier import VizierSampler

LEARNING = ("bayesian", "gp", "tpe", "google-vizier")
"""Algorithms that learn from the results of earlier studies."""
_SINGLE_OBJECTIVE = frozenset({"bayesian", "gp", "cma-es", "google-vizier"})
_RANDOM_STREAM = frozenset({"tpe", "random", "cma-es"})
# Their choices depend on how often they were asked, not on the number of the trial.
_ATTEMPTS = 64
_RANDOM_POINTS = 1024
_GRID_LIMIT = 100_000


def make_sampler(
    algorithm: str,
    space: SearchSpace,
    *,
    seed: int | None,
    objectives: int = 1,
    earlier_trials: int = 0,
) -> PointSampler:
    """Return a new sampler of an algorithm, for one study.

    Args:
        seed: Seed of all random choices; None draws one.
        objectives: Number of objectives. With several, `bayesian`, `gp`, `cma-es` and
            `google-vizier` use TPE.
        earlier_trials: Trials that the study has; the sampler repeats none of their random choices.
    """
    if objectives > 1 and algorithm in _SINGLE_OBJECTIVE:
        algorithm = "tpe"
    if seed is not None and algorithm in _RANDOM_STREAM:
        seed += earlier_trials
    match algorithm:
        case "bayesian" | "gp":
            return BayesianSampler(space, seed=seed)
        case "google-vizier":
            return VizierSampler(space, seed=seed)
        case "grid":
            return GridSampler(space, seed=seed)
        case "qmc":
            return QuasiRandomSampler(space, seed=seed)
        case "tpe":
            inner = _tpe(space, seed)
        case "cma-es":
            inner = _cma_es(seed)
        case "random":
            inner = samplers.RandomSampler(seed=seed)
        case _:
            hint = did_you_mean(algorithm, ALGORITHMS) or f"use one of {', '.join(ALGORITHMS)}"
            raise SpecError(f"unknown algorithm '{algorithm}'", hint=hint)
    return CompletePointSampler(space, inner, seed=seed)


class CompletePointSampler(PointSampler):
    """Sampler that completes another sampler's proposals and rejects infeasible ones."""

    def __init__(self, space: SearchSpace, inner: BaseSampler, *, seed: int | None) -> None:
        super().__init__(space, seed=seed)
        self.inner = inner
        self._cube = UnitCube(space)
        self._rng = np.random.default_rng(seed)

    def propose(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        """Return the first feasible of several proposals."""
        taken = self.running(study, trial)
        for _ in range(_ATTEMPTS):
            point = self._complete(study, trial)
            if self.space.violated(point) is None and point not in taken:
                return point
        candidates = self._cube.draw(self._rng.random((_RANDOM_POINTS, self._cube.size)))
        free = first_free(self._cube, candidates, taken)
        return free or first_free(self._cube, candidates, []) or point

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Forward to the other sampler."""
        self.inner.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Forward to the other sampler."""
        super().after_trial(study, trial, state, values)
        self.inner.after_trial(study, trial, state, values)

    def _complete(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        """Return a proposal with all active parameters, feasible or not."""
        space = self.inner.infer_relative_search_space(study, trial)
        relative = self.inner.sample_relative(study, trial, space)
        point: dict[str, Value] = {}
        for (name, distribution), parameter in zip(
            self._distributions.items(), self.space.parameters, strict=True
        ):
            if self.space.is_active(parameter, point):
                if name in relative:
                    value = relative[name]
                else:
                    value = self.inner.sample_independent(study, trial, name, distribution)
                point[parameter.name] = parameter.from_optuna(value)
        return point


class GridSampler(PointSampler):
    """Sampler that proposes every point once, in an order shuffled by the seed.

    After the last point it starts again. Finished, failed and running trials count as visited.
    """

    def __init__(self, space: SearchSpace, *, seed: int | None) -> None:
        super().__init__(space, seed=seed)
        points = list(itertools.islice(_grid(space), _GRID_LIMIT + 1))
        if len(points) > _GRID_LIMIT:
            raise SpecError(
                f"the grid has more than {_GRID_LIMIT:,} points",
                hint="use fewer values, or another algorithm",
            )
        self._points = [point for point in points if space.violated(point) is None]
        if not self._points:
            raise SpecError("no point of the grid satisfies the constraints")
        random.Random(seed or 0).shuffle(self._points)
        self.size = len(self._points)

    def propose(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        """Return the first point with the fewest visits."""
        visits = dict.fromkeys(map(_key, self._points), 0)
        for other in study.get_trials(deepcopy=False):
            point = self.point_of(other) if other.number != trial.number else None
            if point is not None and _key(point) in visits:
                visits[_key(point)] += 1
        return min(self._points, key=lambda point: visits[_key(point)])


class QuasiRandomSampler(PointSampler):
    """Sampler of a scrambled Sobol sequence, which a resumed study continues."""

    def __init__(self, space: SearchSpace, *, seed: int | None) -> None:
        super().__init__(space, seed=seed)
        self._cube = UnitCube(space)
        self._seed = int(np.random.SeedSequence(seed).generate_state(1)[0])

    def propose(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        """Return the trial's point of the sequence, a random one if it is infeasible."""
        rng = np.random.default_rng([self._seed, trial.number])
        sobol = sobol_point(self._cube.size, trial.number, self._seed)
        others = rng.random((_RANDOM_POINTS, self._cube.size))
        candidates = self._cube.draw(np.vstack([sobol, others]))
        free = first_free(self._cube, candidates, self.running(study, trial))
        return free or first_free(self._cube, candidates, []) or self._cube.point(candidates[0])


def _tpe(space: SearchSpace, seed: int | None) -> BaseSampler:
    is_conditional = any(parameter.parent is not None for parameter in space.parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return samplers.TPESampler(
            seed=seed, multivariate=True, group=is_conditional, constant_liar=True
        )


def _cma_es(seed: int | None) -> BaseSampler:
    if importlib.util.find_spec("cmaes") is None:
        raise MissingExtraError("the algorithm cma-es", "cmaes")
    return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


def _grid(space: SearchSpace) -> Iterator[dict[str, Value]]:
    """Yield all combinations of active values, the last parameter fastest."""

    def extend(point: dict[str, Value], rest: tuple[Parameter, ...]) -> Iterator[dict[str, Value]]:
        if not rest:
            yield point
        elif not space.is_active(rest[0], point):
            yield from extend(point, rest[1:])
        else:
            for value in _grid_values(rest[0]):
                yield from extend({**point, rest[0].name: value}, rest[1:])

    return extend({}, space.parameters)


def _grid_values(parameter: Parameter) -> Sequence[Value]:
    choices = parameter.choices
    if choices is None:
        raise SpecError(
            f"the grid algorithm cannot enumerate the parameter '{parameter.name}' of type double",
            hint="give it discrete values, or use another algorithm",
        )
    return choices


def _key(point: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(point.items()))
