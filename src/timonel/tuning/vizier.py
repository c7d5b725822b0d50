"""Google Vizier's default algorithm (GP-UCB-PE), as an Optuna sampler.

Vizier sees the unit cube: categorical parameters as choices, all others as numbers in [0, 1], and
inactive ones at 0.5, as its designer knows neither conditions nor reverse-log scales. Each proposal
has a new designer, which reads all trials, so a resumed study proposes as an uninterrupted one.

JAX traces and compiles the model for each proposal, which takes 10 to 30 seconds of CPU time.
"""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Any

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from timonel.errors import MissingExtraError
from timonel.tuning.bayesian import BayesianSampler, neighbours
from timonel.tuning.points import Array
from timonel.tuning.space import Parameter, SearchSpace, Value

_OTHERS = 384
_SCALES = (0.01, 0.03, 0.1, 0.3)
_LOSS = "loss"


class VizierSampler(BayesianSampler):
    """Sampler that asks Google Vizier's Gaussian-process bandit.

    A suggestion that violates a constraint is replaced by the nearest of random points around it.
    Failed trials count as the worst value seen, pruned ones with their last report.

    Args:
        seed: Seed of all random choices; None draws one.
    """

    def __init__(self, space: SearchSpace, *, seed: int | None = None) -> None:
        super().__init__(space, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._load()
        self._problem = self._new_problem()

    def _load(self) -> None:
        """Import Vizier, which takes seconds."""
        try:
            import jax  # noqa: PLC0415 - an extra
            from vizier import algorithms, pyvizier  # noqa: PLC0415 - an extra
            from vizier._src.algorithms.designers import gp_ucb_pe  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise MissingExtraError("the algorithm google-vizier", "vizier") from error
        # With float32 the Cholesky factors become NaN, and suggestions are empty.
        jax.config.update("jax_enable_x64", True)
        # The public vizier.algorithms.designers needs packages of Vizier's other extras.
        self._jax, self._vz, self._vza = jax, pyvizier, algorithms
        self._bandit = gp_ucb_pe.VizierGPUCBPEBandit

    def _propose(self, study: Study, trial: FrozenTrial) -> dict[str, Value]:
        rng = np.random.default_rng([*self._words, trial.number])
        positions, losses = self._history.update(study)
        running = self.running(study, trial)
        if trial.number and not len(losses) and not running:
            # All trials failed: Vizier would suggest the centre again.
            return self._choose(self._quasi_random(trial.number, rng), running, positions)
        ended, started = _last_times(study, trial)
        completed = [
            self._completed(p, loss, ended) for p, loss in zip(positions, losses, strict=True)
        ]
        active = [self._active(self._cube.position(point), started) for point in running]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            suggestion = self._suggestion(completed, active, trial.number)
        return self._choose(self._around(suggestion, rng), running, positions)

    def _suggestion(self, completed: list[Any], active: list[Any], number: int) -> Array:
        """Return the position [P] that Vizier suggests."""
        key = self._jax.random.PRNGKey(self._words[0])
        designer = self._bandit(self._problem, rng=self._jax.random.fold_in(key, number))
        designer.update(self._vza.CompletedTrials(completed), self._vza.ActiveTrials(active))
        values = designer.suggest(1)[0].parameters.as_dict()
        units = [values[parameter.name] for parameter in self.space.parameters]
        snapped: Array = self._cube.snap(np.array([units], float))[0]
        return snapped

    def _around(self, position: Array, rng: np.random.Generator) -> Array:
        """Return a position and random ones, the nearest first."""
        cube = self._cube
        near = [neighbours(cube, position[None], scale, rng) for scale in _SCALES]
        others = np.vstack([*near, cube.draw(rng.random((_OTHERS, cube.size)))])
        distances = np.linalg.norm(cube.features(others) - cube.features(position[None]), axis=1)
        return np.vstack([position, others[np.argsort(distances, kind="stable")]])

    def _new_problem(self) -> Any:
        problem = self._vz.ProblemStatement()
        root = problem.search_space.root
        for parameter in self.space.parameters:
            if parameter.kind == "categorical":
                root.add_categorical_param(parameter.name, _choices(parameter))
            else:
                root.add_float_param(parameter.name, 0.0, 1.0)
        goal = self._vz.ObjectiveMetricGoal.MINIMIZE
        problem.metric_information.append(self._vz.MetricInformation(_LOSS, goal=goal))
        return problem

    def _completed(self, position: Array, loss: float, ended: datetime | None) -> Any:
        trial = self._vz.Trial(parameters=self._parameters(position))
        trial.complete(self._vz.Measurement(metrics={_LOSS: float(loss)}))
        if ended is not None:
            trial.completion_time = ended
        return trial

    def _active(self, position: Array, started: datetime | None) -> Any:
        return self._vz.Trial(parameters=self._parameters(position), creation_time=started)

    def _parameters(self, position: Array) -> dict[str, Any]:
        """Return a position [P] as Vizier's values."""
        return {
            parameter.name: _nearest_choice(parameter, unit)
            if parameter.kind == "categorical"
            else float(unit)
            for parameter, unit in zip(self.space.parameters, position, strict=True)
        }


def _choices(parameter: Parameter) -> list[str]:
    """Positions of a categorical parameter's values, as texts."""
    return [repr(parameter.to_unit(value)) for value in parameter.values]


def _nearest_choice(parameter: Parameter, unit: float) -> str:
    # An inactive parameter's position need not be that of a choice.
    return min(_choices(parameter), key=lambda choice: abs(float(choice) - unit))


def _last_times(study: Study, trial: FrozenTrial) -> tuple[datetime | None, datetime | None]:
    """Return the last end of a trial, and the last start of another running one.

    Vizier exploits if the end is later, and explores otherwise.
    """
    others = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
    ends = [other.datetime_complete for other in others if other.datetime_complete]
    running = [other for other in others if other.state == TrialState.RUNNING]
    starts = [other.datetime_start for other in running if other.datetime_start]
    return max(ends, default=None), max(starts, default=None)
