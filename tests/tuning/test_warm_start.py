"""What a study takes from earlier ones, without jobs."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from timonel.errors import NotFoundError, SpecError
from timonel.options import with_defaults
from timonel.storage import Workspace
from timonel.tracking import start_run
from timonel.tuning.objectives import Objective
from timonel.tuning.param_text import parse_space
from timonel.tuning.samplers import make_sampler
from timonel.tuning.settings import StudySettings
from timonel.tuning.space import SearchSpace
from timonel.tuning.studies import create_study
from timonel.tuning.study import RUN, Study
from timonel.tuning.tune_options import TuneOptions
from timonel.tuning.warm_start import WarmStart, read_warm_start

SCORE = (Objective("score"),)
TEXTS = ("x=float(0,1)", "units=int(1,64,log)", "act=choice(relu,tanh)", "epochs=3")


def make_study(
    workspace: Workspace, name: str, space: SearchSpace, start: WarmStart | None = None
) -> Study:
    settings = StudySettings(
        name=name,
        created_at=0.0,
        entry="train.py",
        working_dir="/",
        space=space.to_json(),
        objectives=SCORE,
        options=dict(with_defaults(TuneOptions, {})),
    )
    start = start or WarmStart()
    return create_study(workspace, settings, start.priors, start.points)


def ended(study: Study, *trials: tuple[dict[str, Any], float | None]) -> Study:
    """Add trials that ended; those without a value failed."""
    found = study.load()
    for point, value in trials:
        found.enqueue_trial(study.settings.search_space.params_of(point))
        trial = found.ask()
        study.settings.search_space.suggest(trial)
        trial.set_user_attr(RUN, f"train-{trial.number}")
        if value is None:
            found.tell(trial, state=TrialState.FAIL)
        else:
            trial.report(value / 2, 0)
            found.tell(trial, value)
    return study


def point(x: float, units: int = 8, act: str = "relu") -> dict[str, Any]:
    return {"x": x, "units": units, "act": act}


@pytest.fixture
def workspace(tmp_path: Any) -> Workspace:
    return Workspace(tmp_path)


@pytest.fixture
def earlier(workspace: Workspace) -> Study:
    study = make_study(workspace, "earlier", parse_space(TEXTS))
    return ended(study, (point(0.1), 1.0), (point(0.9, 64, "tanh"), 3.0), (point(0.5), None))


def read(workspace: Workspace, *sources: str, **options: Any) -> WarmStart:
    space = parse_space(options.pop("texts", TEXTS), options.pop("constraints", ()))
    return read_warm_start(
        workspace, sources, space, options.get("objectives", SCORE),
        options.get("algorithm", "bayesian"),
    )  # fmt: skip


def test_results_are_learnt_from_but_are_no_trials(workspace: Workspace, earlier: Study) -> None:
    start = read(workspace, "earlier")
    study = make_study(workspace, "next", parse_space(TEXTS), start)
    assert study.trials == []
    assert study.best_trials == []
    assert study.priors == ["earlier/0", "earlier/1"]
    assert [t.value for t in study.load().get_trials()] == [1.0, 3.0]
    assert study.load().get_trials()[1].intermediate_values == {0: 1.5}
    ended(study, (point(0.2), 2.0))
    assert [trial.values for trial in study.best_trials] == [(2.0,)]


def test_a_study_proposes_near_the_best_earlier_results(workspace: Workspace) -> None:
    space = parse_space(["x=float(0,1)"])
    before = make_study(workspace, "parabola", space)
    ended(before, *(({"x": i / 10}, -((i / 10 - 0.62) ** 2)) for i in range(11)))
    start = read_warm_start(workspace, ["parabola"], space, SCORE, "bayesian")
    for seed in range(5):
        study = make_study(workspace, f"next-{seed}", space, start)
        found = study.load(make_sampler("bayesian", space, seed=seed))
        first = space.suggest(found.ask())["x"]
        assert float(first) == pytest.approx(0.62, abs=0.05)


@pytest.mark.parametrize(
    ("texts", "constraints", "kept"),
    [
        (("x=float(0,0.5)", *TEXTS[1:]), (), [0]),
        ((*TEXTS[:2], "act=choice(tanh,gelu)", TEXTS[3]), (), [1]),
        (("units=values(8,16)", TEXTS[0], *TEXTS[2:]), (), [0]),
        (TEXTS, ("x * units <= 10",), [0]),
        ((TEXTS[0], "units=8", *TEXTS[2:]), (), [0]),
    ],
)
def test_only_results_in_the_new_space_count(
    workspace: Workspace,
    earlier: Study,
    texts: tuple[str, ...],
    constraints: tuple[str, ...],
    kept: list[int],
) -> None:
    start = read(workspace, "earlier", texts=texts, constraints=constraints)
    assert [trial.user_attrs["prior"] for trial in start.priors] == [f"earlier/{n}" for n in kept]


@pytest.mark.parametrize(
    "texts",
    [
        (*TEXTS[:3], "epochs=4"),
        (*TEXTS, "dropout=float(0,1)"),
        (*TEXTS, "dropout=0.5"),
        TEXTS[:2],
        ("x=float(5,6)", *TEXTS[1:]),
    ],
)
def test_results_of_another_space_are_refused(
    workspace: Workspace, earlier: Study, texts: tuple[str, ...]
) -> None:
    with pytest.raises(SpecError, match="no result of the study earlier lies in the search space"):
        read(workspace, "earlier", texts=texts)


def test_other_objectives_and_algorithms_are_refused(workspace: Workspace, earlier: Study) -> None:
    with pytest.raises(SpecError, match="other objectives: maximize score"):
        read(workspace, "earlier", objectives=(Objective("score", "minimize"),))
    for algorithm in ("random", "qmc", "cma-es"):
        with pytest.raises(SpecError, match=f"{algorithm} does not learn from"):
            read(workspace, "earlier", algorithm=algorithm)
    with pytest.raises(SpecError, match="grid has no warm start"):
        read(workspace, "earlier", algorithm="grid")
    for name in ("nothing", "x" * 300, "../y"):
        with pytest.raises(NotFoundError, match=f"no study or run '{name}'"):
            read(workspace, name)


def test_the_parameters_of_runs_are_tried_first(workspace: Workspace) -> None:
    recorded = [
        {"x": "0.25", "units": "16", "act": "tanh", "batch": 7},
        {"x": 0.75, "units": 32.0},
    ]
    runs = [start_run(workspace, "train", params=params).run_id for params in recorded]
    start = read(workspace, *runs)
    space = parse_space(TEXTS)
    study = make_study(workspace, "from-runs", space, start)
    assert study.trials == []  # nothing runs yet
    found = study.load(make_sampler("bayesian", space, seed=1))
    first, second, third = (space.suggest(found.ask()) for _ in range(3))
    assert first == {"x": 0.25, "units": 16, "act": "tanh", "epochs": 3}
    assert (second["x"], second["units"]) == (0.75, 32)
    assert second["act"] in {"relu", "tanh"}
    assert third["x"] not in {0.25, 0.75}


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"batch": 7}, "none of the study's parameters"),
        ({"x": 2.0}, "parameter 'x': the value 2.0 is outside"),
        ({"units": 2.5}, "parameter 'units': the value 2.5 is outside"),
        ({"act": "gelu"}, "parameter 'act': the value 'gelu' is outside"),
    ],
)
def test_runs_outside_of_the_space_are_refused(
    workspace: Workspace, params: dict[str, Any], problem: str
) -> None:
    run = start_run(workspace, "train", params=params)
    with pytest.raises(SpecError, match=problem):
        read(workspace, run.run_id)


def test_optuna_shows_priors_too(workspace: Workspace, earlier: Study) -> None:
    study = make_study(workspace, "seen", parse_space(TEXTS), read(workspace, "earlier"))
    loaded = optuna.load_study(study_name="seen", storage=study.storage)
    assert [trial.user_attrs["prior"] for trial in loaded.trials] == ["earlier/0", "earlier/1"]
