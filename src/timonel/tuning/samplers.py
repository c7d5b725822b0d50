"""Tuning algorithms by name, as Optuna samplers.

All algorithms propose complete points: the constraints of the space hold, and a point differs from
those of running trials wherever the space has another one.
"""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from optuna import samplers
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from timonel.errors import MissingExtraError, SpecError
from timonel.tuning.bayesian import BayesianSampler
from timonel.tuning.points import PointSampler, UnitCube, first_free, sobol_point
from timonel.tuning.space import Parameter, SearchSpace, Value
from timonel.tuning.vizier import VizierSampler

ALGORITHMS: Mapping[str, str] = MappingProxyType(
    {
        "bayesian": "Bayesian optimization with a Gaussian process (default)",
        "gp": "the same as bayesian",
        "tpe": "tree-structured Parzen estimator, cheap for thousands of trials",
        "cma-es": "evolution strategy for continuous parameters and hundreds of trials",
        "random": "independent random values",
        "grid": "every combination once, without doubles",
        "qmc": "quasi-random values, which cover the space evenly",
        "google-vizier": "Google Vizier's Gaussian-process bandit, 10 to 30 seconds per proposal",
    }
)
"""Description of each algorithm by name."""

_SINGLE_OBJECTIVE = frozenset({"bayesian", "gp", "cma-es", "google-vizier"})
_ATTEMPTS = 64
_RANDOM_POINTS = 1024
_GRID_LIMIT = 100_000


def make_sampler(
    algorithm: str, space: SearchSpace, *, seed: int | None, objectives: int = 1
) -> BaseSampler:
    """Return a new sampler of an algorithm, for one study.

    Args:
        algorithm: A name of `ALGORITHMS`.
        space: The search space of the study.
        seed: Seed of all random choices; None draws one.
        objectives: Number of objectives. With several, `bayesian`, `gp`, `cma-es` and
            `google-vizier` use TPE.

    Raises:
        SpecError: The algorithm is unknown, or does not suit the space.
        MissingExtraError: The algorithm needs a package that is not installed.
    """
    if algorithm not in ALGORITHMS:
        raise _unknown(algorithm)
    if objectives > 1 and algorithm in _SINGLE_OBJECTIVE:
        algorithm = "tpe"
    if algorithm == "google-vizier":
        return VizierSampler(space, seed=seed)
    if algorithm in {"bayesian", "gp"}:
        return BayesianSampler(space, seed=seed)
    if algorithm == "grid":
        return GridSampler(space, seed=seed)
    if algorithm == "qmc":
        return QuasiRandomSampler(space, seed=seed)
    return CompletePointSampler(space, _OPTUNA[algorithm](space, seed), seed=seed)


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
            if self._cube.is_feasible(point) and point not in taken:
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
            if self.space.is_active(parameter, {**self.space.fixed, **point}):
                if name in relative:
                    value = relative[name]
                else:
                    value = self.inner.sample_independent(study, trial, name, distribution)
                point[parameter.name] = parameter.from_optuna(value)
        return point


class GridSampler(PointSampler):
    """Sampler that proposes every point once, in an order shuffled by the seed.

    `size` is the number of points; after that many proposals it starts again.
    Finished, failed and running trials all count as visited.
    """

    def __init__(self, space: SearchSpace, *, seed: int | None) -> None:
        super().__init__(space, seed=seed)
        cube = UnitCube(space)
        grid = itertools.islice(_grid(space), _GRID_LIMIT + 1)
        self._points = [point for point in grid if cube.is_feasible(point)]
        if len(self._points) > _GRID_LIMIT:
            raise SpecError(
                f"the grid has more than {_GRID_LIMIT:,} points",
                hint="use fewer values, or another algorithm",
            )
        if not self._points:
            raise SpecError("no point of the grid satisfies the constraints")
        random.Random(seed or 0).shuffle(self._points)

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self._points)

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


def _cma_es(_: SearchSpace, seed: int | None) -> BaseSampler:
    if importlib.util.find_spec("cmaes") is None:
        raise MissingExtraError("the algorithm cma-es", "cmaes")
    return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


def _random(_: SearchSpace, seed: int | None) -> BaseSampler:
    return samplers.RandomSampler(seed=seed)


_OPTUNA: Mapping[str, Callable[[SearchSpace, int | None], BaseSampler]] = MappingProxyType(
    {"tpe": _tpe, "cma-es": _cma_es, "random": _random}
)


def _unknown(algorithm: str) -> SpecError:
    nearest = difflib.get_close_matches(algorithm, list(ALGORITHMS), n=1)
    known = f"use one of {', '.join(ALGORITHMS)}"
    return SpecError(
        f"unknown algorithm '{algorithm}'",
        hint=f"did you mean {nearest[0]}? {known}" if nearest else known,
    )


def _grid(space: SearchSpace) -> Iterator[dict[str, Value]]:
    """Yield all combinations of active values, the last parameter fastest."""

    def extend(point: dict[str, Value], rest: tuple[Parameter, ...]) -> Iterator[dict[str, Value]]:
        if not rest:
            yield point
        elif not space.is_active(rest[0], {**space.fixed, **point}):
            yield from extend(point, rest[1:])
        else:
            for value in _grid_values(rest[0]):
                yield from extend({**point, rest[0].name: value}, rest[1:])

    return extend({}, space.parameters)


def _grid_values(parameter: Parameter) -> Sequence[Value]:
    if parameter.kind == "double":
        raise SpecError(
            f"the grid algorithm cannot enumerate the parameter '{parameter.name}' of type double",
            hint="give it discrete values, or use another algorithm",
        )
    if parameter.kind == "integer":
        assert parameter.low is not None
        assert parameter.high is not None
        return range(int(parameter.low), int(parameter.high) + 1)
    return parameter.values


def _key(point: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(point.items()))
