from __future__ import annotations

import importlib.util
import math

import optuna
import pytest

from timonel.errors import MissingExtraError, SpecError
from timonel.tuning.samplers import GridSampler, make_sampler
from timonel.tuning.space import Parameter, SearchSpace, Value
from timonel.tuning.tune_options import ALGORITHMS

PARAMETERS = (
    Parameter("optimizer", "categorical", values=("sgd", "adam")),
    Parameter("lr", "double", 1e-4, 1e-1, scale="log"),
    Parameter("decay", "double", 0.9, 0.999, scale="reverse-log"),
    Parameter("layers", "integer", 1, 8),
    Parameter("batch", "discrete", values=(16, 32, 64, 128)),
    Parameter("momentum", "double", 0.0, 0.99, parent="optimizer", parent_values=("sgd",)),
    Parameter("nesterov", "categorical", values=("on", "off"), parent="optimizer",
              parent_values=("sgd",)),
)  # fmt: skip
SPACE = SearchSpace(PARAMETERS, {"units": 64}, ("layers * batch <= 256", "layers * units <= 384"))
FINITE = SearchSpace(
    tuple(p for p in PARAMETERS if p.kind != "double"), {"units": 64}, SPACE.constraints
)
HAS_CMAES = importlib.util.find_spec("cmaes") is not None
NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(not HAS_CMAES, reason="cmaes is not installed"))
    if name == "cma-es"
    else name
    for name in ALGORITHMS
    if name != "google-vizier"  # its proposals take seconds: test_vizier.py
]

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def study_of(algorithm: str, space: SearchSpace = SPACE, *, seed: int = 0) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = FINITE if algorithm == "grid" and space is SPACE else space
    return optuna.create_study(sampler=make_sampler(algorithm, space, seed=seed))


def space_of(study: optuna.Study) -> SearchSpace:
    space: SearchSpace = study.sampler.space  # type: ignore[attr-defined]
    return space


def loss(values: dict[str, Value]) -> float:
    layers = values["layers"]
    assert isinstance(layers, int)
    return (layers - 3) ** 2 + (values["optimizer"] == "sgd") + math.log2(float(values["batch"]))


def run(study: optuna.Study, trials: int) -> list[dict[str, Value]]:
    found = []
    for _ in range(trials):
        trial = study.ask()
        found.append(space_of(study).suggest(trial))
        study.tell(trial, loss(found[-1]))
    return found


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("finished", [0, 14])
def test_parallel_proposals_differ(algorithm: str, finished: int) -> None:
    study = study_of(algorithm)
    run(study, finished)
    trials = [study.ask() for _ in range(4)]
    points = [space_of(study).suggest(trial) for trial in trials]
    assert len({tuple(point.items()) for point in points}) == 4


@pytest.mark.parametrize("algorithm", NAMES)
def test_seed_determines_the_proposals(algorithm: str) -> None:
    first, again = (run(study_of(algorithm, seed=3), 16) for _ in range(2))
    assert first == again
    assert first != run(study_of(algorithm, seed=4), 16)


@pytest.mark.parametrize("algorithm", NAMES)
def test_proposals_satisfy_conditions_and_constraints(algorithm: str) -> None:
    study = study_of(algorithm)
    points = run(study, 30)
    for point in points:
        assert space_of(study).violated(point) is None
        assert ("nesterov" in point) == (point["optimizer"] == "sgd")
        assert point["units"] == 64
    assert {point["optimizer"] for point in points} == {"sgd", "adam"}


@pytest.mark.parametrize("algorithm", NAMES)
def test_failed_and_infinite_trials_do_not_break_a_proposal(algorithm: str) -> None:
    study = study_of(algorithm)
    for index in range(24):
        trial = study.ask()
        value = loss(space_of(study).suggest(trial))
        match index % 6:
            case 0:
                with pytest.warns(UserWarning, match="nan is not acceptable"):
                    study.tell(trial, math.nan)
            case 1:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            case 2:
                study.tell(trial, math.inf)
            case 3:
                trial.report(value, 1)
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            case _:
                study.tell(trial, value)
    assert space_of(study).violated(space_of(study).suggest(study.ask())) is None


@pytest.mark.parametrize("algorithm", NAMES)
def test_enqueued_points_are_used(algorithm: str) -> None:
    study = study_of(algorithm)
    space = space_of(study)
    point: dict[str, Value] = {"optimizer": "sgd", "layers": 2, "batch": 32, "nesterov": "on"}
    study.enqueue_trial(space.params_of(point))
    values = space.suggest(study.ask())
    assert point.items() <= values.items()
    assert {"momentum"} & values.keys() == {"momentum"} & {p.name for p in space.parameters}


@pytest.mark.parametrize("algorithm", NAMES)
def test_space_with_few_points_repeats_them(algorithm: str) -> None:
    space = SearchSpace((Parameter("layers", "integer", 1, 2),))
    study = study_of(algorithm, space)
    found = []
    for _ in range(6):
        trial = study.ask()
        found.append(space.suggest(trial)["layers"])
        study.tell(trial, found[-1])
    assert set(found) == {1, 2}


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"cma-es"}))
def test_several_objectives(algorithm: str) -> None:
    space = FINITE if algorithm == "grid" else SPACE
    sampler = make_sampler(algorithm, space, seed=0, objectives=2)
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
    for _ in range(14):
        trial = study.ask()
        values = space.suggest(trial)
        study.tell(trial, [loss(values), loss(values)])
    assert study.best_trials


def test_grid_visits_each_point_once() -> None:
    sampler = make_sampler("grid", FINITE, seed=1)
    assert isinstance(sampler, GridSampler)
    study = optuna.create_study(sampler=sampler)
    points = [tuple(point.items()) for point in run(study, sampler.size)]
    assert len(set(points)) == sampler.size
    by_hand = {
        (layers, batch, rest)
        for layers in range(1, 7)
        for batch in (16, 32, 64, 128)
        for rest in ("adam", "sgd on", "sgd off")
        if layers * batch <= 256
    }
    assert sampler.size == len(by_hand)
    assert points != [tuple(p.items()) for p in run(study_of("grid", seed=2), sampler.size)]
    assert tuple(run(study, 1)[0].items()) in points


def test_resumed_grid_continues() -> None:
    study = study_of("grid")
    size = study.sampler.size  # type: ignore[attr-defined]
    first = run(study, 5)
    study.ask()  # never suggested a value: it visits nothing
    study.sampler = make_sampler("grid", FINITE, seed=9)
    rest = run(study, size - 5)
    assert len({tuple(point.items()) for point in first + rest}) == size


def test_grid_rejects_doubles_and_huge_grids() -> None:
    with pytest.raises(SpecError, match=r"cannot enumerate the parameter 'lr' of type double"):
        make_sampler("grid", SPACE, seed=None)
    huge = SearchSpace(tuple(Parameter(f"x{i}", "integer", 1, 1000) for i in range(4)))
    with pytest.raises(SpecError, match="more than 100,000 points"):
        make_sampler("grid", huge, seed=None)
    with pytest.raises(SpecError, match="more than 100,000 points"):
        make_sampler("grid", SearchSpace(huge.parameters, {}, ("x3 > 1",)), seed=None)
    empty = SearchSpace((Parameter("x", "integer", 1, 4),), {}, ("x > 4",))
    with pytest.raises(SpecError, match="no point of the grid"):
        make_sampler("grid", empty, seed=None)


@pytest.mark.parametrize("algorithm", ["random", "tpe", "bayesian"])
def test_a_resumed_study_repeats_no_random_choices(algorithm: str) -> None:
    first, resumed = (
        make_sampler(algorithm, SPACE, seed=1, objectives=2, earlier_trials=count)
        for count in (0, 5)
    )
    points = []
    for sampler in (first, resumed):
        study = optuna.create_study(sampler=sampler, directions=["minimize", "maximize"])
        points.append(SPACE.suggest(study.ask()))
    assert points[0] != points[1]


def test_unknown_algorithm_names_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"'baysian': did you mean 'bayesian'\?"):
        make_sampler("baysian", SPACE, seed=None)
    with pytest.raises(SpecError, match=r"unknown algorithm 'x': use one of bayesian"):
        make_sampler("x", SPACE, seed=None)


def test_cma_es_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="cma-es needs the extra 'cmaes'"):
        make_sampler("cma-es", SPACE, seed=None)


def test_infeasible_space_still_gets_a_proposal() -> None:
    space = SearchSpace((Parameter("x", "double", 0, 1),), {}, ("x > 2",))
    for algorithm in ("bayesian", "tpe", "random", "qmc"):
        study = study_of(algorithm, space)
        assert space.violated(space.suggest(study.ask())) == "x > 2"
