from __future__ import annotations

import importlib.util
import sys

import optuna
import pytest

from timonel.errors import MissingExtraError
from timonel.tuning.samplers import make_sampler
from timonel.tuning.space import Parameter, SearchSpace, Value

BOWL = SearchSpace(
    (Parameter("x", "double", -1, 3), Parameter("y", "double", 0.01, 1, scale="log"))
)
TREE = SearchSpace(
    (
        Parameter("kind", "categorical", values=("a", "b")),
        Parameter("layers", "integer", 1, 8),
        Parameter("batch", "discrete", values=(16, 32, 64)),
        Parameter("mode", "categorical", values=("p", "q"), parent="kind", parent_values=("b",)),
        Parameter("decay", "double", 0.9, 0.999, scale="reverse-log"),
    ),
    {"units": 64},
    ("layers * batch <= 128",),
)
needs_vizier = pytest.mark.skipif(
    not (importlib.util.find_spec("vizier") and importlib.util.find_spec("jax")),
    reason="vizier is not installed",
)


def study_of(space: SearchSpace, *, direction: str = "minimize", seed: int = 0) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = make_sampler("google-vizier", space, seed=seed)
    return optuna.create_study(direction=direction, sampler=sampler)


def negative_bowl(trial: optuna.Trial) -> float:
    values = BOWL.suggest(trial)
    return -((float(values["x"]) - 0.3) ** 2) - (float(values["y"]) - 0.5) ** 2


@needs_vizier
def test_finds_a_maximum() -> None:
    study = study_of(BOWL, direction="maximize")
    study.optimize(negative_bowl, n_trials=12)
    assert study.best_value > -0.05
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 12


@needs_vizier
def test_proposals_continue_with_failed_and_running_trials() -> None:
    def points() -> list[dict[str, Value]]:
        study = study_of(TREE)
        found, running = [], []
        for number in range(7):
            trial = study.ask()
            found.append(TREE.suggest(trial))
            running.append(trial)
            if number == 0:
                study.tell(running.pop(0), state=optuna.trial.TrialState.FAIL)
            elif number > 2:
                study.tell(running.pop(0), float(found[-1]["layers"]))
        return found

    found = points()
    for point in found:
        assert TREE.violated(point) is None
        assert ("mode" in point) == (point["kind"] == "b")
    assert len({tuple(point.items()) for point in found}) == 7
    assert points() == found


def test_needs_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match="google-vizier needs the extra 'vizier'"):
        make_sampler("google-vizier", BOWL, seed=None)
