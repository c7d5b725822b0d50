"""Bayesian optimisation with a Gaussian process, as an Optuna sampler.

A Gaussian process (Matern 5/2, one length scale per feature, noise) models the objective on the
unit cube. A proposal maximises the logarithm of the expected improvement, first over random points
and then in shrinking neighbourhoods of the best ones. Running trials count as if they had returned
the model's mean, so parallel proposals differ.

The first proposals are a Sobol sequence. They depend on the seed and the trial's number alone, so a
resumed study continues the sequence.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from timonel.tuning.gaussian import Regression
from timonel.tuning.objectives import is_infeasible
from timonel.tuning.points import Array, PointSampler, UnitCube, first_free, sobol_point
from timonel.tuning.space import SearchSpace, Value

_STARTUP_MAX = 10
_MODEL_SIZE = 100
"""Trials in the model: fitting costs their cube."""
_GLOBAL_CANDIDATES = 384
_LOCAL_CANDIDATES = 128
_LOCAL_SCALES = (0.2, 0.08, 0.03, 0.01, 0.003)
_CENTRES = 5
_MIN_DISTANCE = 0.005
"""Between parallel proposals: closer ones would return almost the same value."""


class BayesianSampler(PointSampler):
    """Sampler that maximises the expected improvement under a Gaussian process.

    Failed and infeasible trials count as the worst value seen, pruned ones with their last report.

    Args:
        seed: Seed of all random choices; None draws one.
    """

    def __init__(self, space: SearchSpace, *, seed: int | None = None) -> None:
        super().__init__(space, seed=seed)
        self._words = np.random.SeedSequence(seed).generate_state(4).tolist()
        self._cube = UnitCube(space)
        self._startup = min(_STARTUP_MAX, self._cube.size + 3)
        self._history = _History(self)
        self._theta: Array | None = None
        self._next_fit = 0
        self._threads: Any = None

    def propose(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        """Return the point of the largest expected improvement."""
        if self._threads is None:
            self._threads = _thread_controller()
        # Threads slow down matrices of this size, and compete with the trials.
        with self._threads.limit(limits=1):
            return self._propose(study, trial)

    def _propose(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        rng = np.random.default_rng([*self._words, trial.number])
        positions, losses = self._history.update(study)
        running = self.running(study, trial)
        if len(losses) < 2 or len(losses) + len(running) < self._startup or np.ptp(losses) == 0:
            candidates = self._quasi_random(trial.number, rng)
        else:
            candidates = self._best_candidates(positions, losses, running, rng)
        return self._choose(candidates, running, positions)

    def _choose(
        self, candidates: Array, running: list[dict[str, Value]], positions: Array
    ) -> dict[str, Value]:
        """Return the first feasible candidate, preferably one that was not tried yet."""
        tried = {position.tobytes() for position in positions}
        new = (c for c in self._distant(candidates, running) if c.tobytes() not in tried)
        for choice, taken in ((new, running), (candidates, running), (candidates, [])):
            point = first_free(self._cube, choice, taken)
            if point is not None:
                return point
        return self._cube.point(candidates[0])

    def _distant(self, candidates: Array, running: list[dict[str, Value]]) -> Array:
        """Return the candidates that are not next to a running trial's point."""
        features = self._cube.features(candidates)
        for point in running:
            other = self._cube.features(self._cube.position(point)[None])
            is_distant = np.linalg.norm(features - other, axis=1) >= _MIN_DISTANCE
            candidates, features = candidates[is_distant], features[is_distant]
        return candidates

    def _quasi_random(self, number: int, rng: np.random.Generator) -> Array:
        sobol = sobol_point(self._cube.size, number, self._words[0])
        others = rng.random((_GLOBAL_CANDIDATES, self._cube.size))
        return self._cube.draw(np.vstack([sobol, others]))

    def _best_candidates(
        self,
        positions: Array,
        losses: Array,
        running: list[dict[str, Value]],
        rng: np.random.Generator,
    ) -> Array:
        """Return candidates by decreasing expected improvement."""
        cube = self._cube
        chosen = _subset(losses, rng)
        positions, losses = positions[chosen], _normalized(losses[chosen])
        model = Regression(cube.features(positions), losses, self._theta)
        if self._history.count >= self._next_fit:
            self._theta = model.optimize()
            self._next_fit = self._history.count + 1 + self._history.count // 20
        model.condition()
        best = float(model.predict(model.features)[0].min())
        if running:
            model.add(cube.features(np.array([cube.position(point) for point in running])))

        def ranked(candidates: Array) -> tuple[Array, Array]:
            scores = log_expected_improvement(*model.predict(cube.features(candidates)), best)
            order = np.argsort(-scores, kind="stable")
            return candidates[order], scores[order]

        start = cube.draw(rng.random((_GLOBAL_CANDIDATES, cube.size)))
        centres = positions[np.argsort(losses)[:_CENTRES]]
        candidates, scores = ranked(np.vstack([start, centres]))
        for scale in _LOCAL_SCALES:
            near = neighbours(cube, np.vstack([candidates[:_CENTRES], centres]), scale, rng)
            near, near_scores = ranked(near)
            order = np.argsort(-np.concatenate([scores, near_scores]), kind="stable")
            candidates = np.vstack([candidates, near])[order]
            scores = np.concatenate([scores, near_scores])[order]
        return candidates


class _History:
    """Positions and losses of a study's finished trials, each encoded once."""

    def __init__(self, sampler: BayesianSampler) -> None:
        self._sampler = sampler
        self._seen: set[int] = set()
        self._positions: list[Array] = []
        self._losses: list[float] = []

    @property
    def count(self) -> int:
        return len(self._losses)

    def update(self, study: Study) -> tuple[Array, Array]:
        """Return positions [n, P] and losses [n]; failed trials have the largest finite loss."""
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
        for trial in study.get_trials(deepcopy=False, states=states):
            if trial.number not in self._seen:
                self._seen.add(trial.number)
                self._add(trial, sign)
        losses = np.array(self._losses)
        finite = np.isfinite(losses)
        if not finite.any():
            return np.empty((0, len(self._sampler.space.parameters))), np.empty(0)
        low, high = losses[finite].min(), losses[finite].max()
        return np.array(self._positions), np.clip(np.nan_to_num(losses, nan=high), low, high)

    def _add(self, trial: FrozenTrial, sign: float) -> None:
        point = self._sampler.point_of(trial)
        value = _value(trial)
        if point is None or value is None:
            return
        self._positions.append(self._sampler._cube.position(point))
        self._losses.append(sign * value)


def log_expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Return the logarithm of the expected improvement below ``best``, finite far from it."""
    from scipy.special import log_ndtr  # type: ignore[import-untyped]  # noqa: PLC0415

    z = (best - mean) / deviation
    log_density = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    near = np.maximum(z, -1.0)
    direct = np.log(np.exp(-0.5 * near**2) / math.sqrt(2 * math.pi) + near * np.exp(log_ndtr(near)))
    # h(z) = pdf + z cdf cancels in the tail; from -50 on its asymptote pdf / z^2 is exact enough.
    tail = np.clip(z, -50.0, -1.0)
    ratio = np.exp(log_ndtr(tail) + 0.5 * tail**2 + 0.5 * math.log(2 * math.pi))
    middle = log_density + np.log1p(np.maximum(tail * ratio, -1.0 + 1e-12))
    far = log_density - 2 * np.log(np.maximum(-z, 1.0))
    log_h = np.where(z > -1.0, direct, np.where(z > -50.0, middle, far))
    return np.asarray(np.log(deviation) + log_h)


def _value(trial: FrozenTrial) -> float | None:
    """A trial's objective, NaN if it failed or is infeasible, None if it says nothing."""
    if is_infeasible(trial):
        return math.nan
    if trial.state == TrialState.COMPLETE:
        return trial.value
    if trial.state == TrialState.FAIL:
        return math.nan
    last = trial.last_step
    return None if last is None else trial.intermediate_values[last]


def _normalized(losses: Array) -> Array:
    """Losses at mean 0 and deviation 1, with those above the median compressed.

    The model should be exact where the objective is good; a few huge values would hide that.
    """
    median = np.median(losses)
    spread = median - losses.min() or np.ptp(losses)
    excess = np.maximum(losses - median, 0.0) / spread
    compressed = np.minimum(losses, median) + spread * np.log1p(excess)
    return np.asarray((compressed - compressed.mean()) / (compressed.std() or 1.0))


def _subset(losses: Array, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Indices of the trials in the model: the best half, and random others."""
    if len(losses) <= _MODEL_SIZE:
        return np.arange(len(losses))
    order = np.argsort(losses, kind="stable")
    half = _MODEL_SIZE // 2
    others = rng.choice(order[half:], _MODEL_SIZE - half, replace=False)
    return np.sort(np.concatenate([order[:half], others]))


def neighbours(cube: UnitCube, centres: Array, scale: float, rng: np.random.Generator) -> Array:
    """Return random neighbours of the centres: some values moved, few categories replaced."""
    starts = centres[rng.integers(len(centres), size=_LOCAL_CANDIDATES)]
    shape = starts.shape
    share = max(0.5, 2 / cube.size)
    moved = starts + scale * rng.standard_normal(shape) * (rng.random(shape) < share)
    fresh = cube.draw(rng.random(shape))
    replaced = cube.is_categorical & (rng.random(shape) < 1 / (cube.size + 1))
    # A child that just became active has no position to move from.
    return cube.snap(np.where(replaced, fresh, moved))


def _thread_controller() -> Any:
    # SciPy brings its own BLAS, which must be loaded to be controlled.
    import scipy.linalg  # type: ignore[import-untyped]  # noqa: PLC0415, F401 - loads on use
    from threadpoolctl import (  # type: ignore[import-untyped]  # noqa: PLC0415 - loads on use
        ThreadpoolController,
    )

    return ThreadpoolController()
