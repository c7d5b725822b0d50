from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import optuna
import pytest

from timonel.tuning.bayesian import BayesianSampler, log_expected_improvement
from timonel.tuning.points import UnitCube
from timonel.tuning.space import Parameter, SearchSpace

SQUARE = SearchSpace((Parameter("x", "double", -1, 3), Parameter("y", "double", -2, 2)))
TREE = SearchSpace(
    (
        Parameter("kind", "categorical", values=("a", "b", "c")),
        Parameter("depth", "integer", 1, 4, parent="kind", parent_values=("a", "b")),
        Parameter("rate", "double", 1e-3, 1.0, scale="log", parent="depth", parent_values=(2, 3)),
        Parameter("wide", "integer", 1, 10**6, scale="log"),
    )
)


def study_of(space: SearchSpace, *, direction: str = "minimize", seed: int = 0) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(direction=direction, sampler=BayesianSampler(space, seed=seed))


def bowl(trial: optuna.Trial) -> float:
    values = SQUARE.suggest(trial)
    return (float(values["x"]) - 0.7) ** 2 + (float(values["y"]) + 0.4) ** 2


def test_finds_the_minimum_of_a_bowl() -> None:
    study = study_of(SQUARE)
    study.optimize(bowl, n_trials=18)
    assert study.best_value < 1e-3


def test_finds_a_maximum() -> None:
    study = study_of(SQUARE, direction="maximize")
    study.optimize(lambda trial: -bowl(trial), n_trials=18)
    assert study.best_value > -1e-3


def test_huge_values_do_not_hide_the_minimum() -> None:
    study = study_of(SQUARE)
    study.optimize(lambda trial: float(np.expm1(4 * bowl(trial))), n_trials=25)
    assert study.best_value < 0.2


def test_parallel_proposals_keep_a_distance() -> None:
    study = study_of(SQUARE)
    study.optimize(bowl, n_trials=12)
    points = [SQUARE.suggest(study.ask()) for _ in range(6)]
    positions = np.array([UnitCube(SQUARE).position(point) for point in points])
    distances = np.linalg.norm(positions[:, None] - positions, axis=2)
    assert distances[np.triu_indices(6, 1)].min() >= 0.005 - 1e-9


def test_resumed_study_proposes_as_the_uninterrupted_one() -> None:
    whole, cut = study_of(SQUARE), study_of(SQUARE)
    whole.optimize(bowl, n_trials=8)
    for _ in range(8):
        cut.sampler = BayesianSampler(SQUARE, seed=0)
        cut.optimize(bowl, n_trials=1)
    startup = 5
    assert [t.params for t in whole.trials[: startup + 1]] == [
        t.params for t in cut.trials[: startup + 1]
    ]


def test_avoids_where_trials_fail() -> None:
    study = study_of(SQUARE)
    failed = 0
    for _ in range(25):
        trial = study.ask()
        value = bowl(trial)
        if trial.params["x"] > 1:
            failed += trial.number >= 12
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, value)
    assert failed <= 3
    assert study.best_value < 0.01


def test_infeasible_trials_count_as_the_worst() -> None:
    study = study_of(SQUARE)
    for _ in range(20):
        trial = study.ask()
        value = bowl(trial)
        is_infeasible = trial.params["x"] > 0
        study._storage.set_trial_system_attr(
            trial._trial_id, "constraints", (1.0 if is_infeasible else -1.0,)
        )
        study.tell(trial, value)
    late = study.trials[10:]
    assert sum(trial.params["x"] > 0 for trial in late) <= 4


@pytest.mark.parametrize("value", [1.0, float("inf")])
def test_constant_objective(value: float) -> None:
    study = study_of(SQUARE)
    study.optimize(lambda trial: value + 0 * bowl(trial), n_trials=12)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 12


def test_proposes_without_trials_that_have_its_parameters() -> None:
    study = study_of(SQUARE)
    for value in range(12):
        other = optuna.distributions.FloatDistribution(0, 1)
        study.add_trial(
            optuna.trial.create_trial(
                value=value, params={"other": 0.5}, distributions={"other": other}
            )
        )
    assert SQUARE.suggest(study.ask()).keys() == {"x", "y"}


def test_conditional_parameters_are_proposed_when_active() -> None:
    study = study_of(TREE)
    for _ in range(25):
        trial = study.ask()
        values = TREE.suggest(trial)
        assert ("depth" in values) == (values["kind"] != "c")
        assert ("rate" in values) == (values.get("depth") in {2, 3})
        study.tell(trial, (values["kind"] != "b") + abs(int(values.get("depth", 9)) - 3))
    assert study.best_value == 0


def test_positions_and_points_are_inverse() -> None:
    cube = UnitCube(TREE)
    positions = cube.draw(np.random.default_rng(0).random((200, 4)))
    assert np.array_equal(positions, cube.snap(positions))
    for position in positions:
        point = cube.point(position)
        assert cube.point(cube.position(point)) == point
        assert ("rate" in point) == (point.get("depth") in {2, 3})
    assert cube.features(positions).shape == (200, 6)


def test_children_of_a_fixed_parent_are_active() -> None:
    child = Parameter("momentum", "double", 0, 1, parent="optimizer", parent_values=("sgd",))
    space = SearchSpace((child,), {"optimizer": "sgd"})
    study = study_of(space)
    study.optimize(lambda trial: float(space.suggest(trial)["momentum"]), n_trials=8)
    assert study.best_value < 0.05


def test_log_expected_improvement_is_exact_and_finite() -> None:
    from scipy.stats import norm

    z = np.array([5.0, 0.5, 0.0, -0.9, -1.1, -4.0])
    deviation = np.full(6, 0.3)
    mean = 1.0 - z * deviation
    exact = np.log(deviation * (norm.pdf(z) + z * norm.cdf(z)))
    assert np.allclose(log_expected_improvement(mean, deviation, 1.0), exact, rtol=1e-6)
    far = log_expected_improvement(np.linspace(3, 1e4, 2000), np.full(2000, 0.05), 0.0)
    assert np.isfinite(far).all()
    assert (np.diff(far) < 0).all()


@pytest.mark.process
def test_importing_loads_no_scientific_package() -> None:
    code = (
        "import sys, timonel.tuning.samplers\n"
        "assert not {'sklearn', 'scipy', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_proposal_with_many_trials_is_fast() -> None:
    study = study_of(SQUARE)
    rng = np.random.default_rng(0)
    for x, y in rng.uniform((-1, -2), (3, 2), (2000, 2)).tolist():
        params = {"x": x, "y": y}
        study.add_trial(
            optuna.trial.create_trial(
                value=x * x + y * y, params=params, distributions=SQUARE.distributions()
            )
        )
    SQUARE.suggest(study.ask())
    start = time.process_time()
    SQUARE.suggest(study.ask())
    assert time.process_time() - start < 1.0
