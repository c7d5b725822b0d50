"""Figures and pages of studies of any shape."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest
from matplotlib.figure import Figure
from optuna.trial import TrialState

from timonel.errors import SpecError
from timonel.options import with_defaults
from timonel.storage import Workspace
from timonel.tuning import Study
from timonel.tuning.objectives import Objective
from timonel.tuning.param_text import parse_space
from timonel.tuning.plots import Plots
from timonel.tuning.settings import StudySettings
from timonel.tuning.studies import create_study
from timonel.tuning.study import REASON, STATUS
from timonel.tuning.tune_options import TuneOptions

MIXED = (
    "lr=log(1e-5,1e-1)",
    "momentum=reverse-log(0.9,0.999)",
    "units=int(32,256)",
    "batch-size=values(16,32,64,256)",
    "optimizer=choice(sgd,$adam$)",
    "nesterov=choice(yes,no) if optimizer=sgd",
    "epochs=10",
)


def study(
    tmp_path: Path,
    trials: int,
    *,
    space: Sequence[str] = MIXED,
    metrics: Sequence[str] = ("score",),
    states: Sequence[TrialState] = (TrialState.COMPLETE,),
    constant: bool = False,
) -> Study:
    """Return a study whose trials were recorded without jobs; states repeat."""
    settings = StudySettings(
        name="seen",
        created_at=0.0,
        entry="<train>.py",
        working_dir="/",
        space=parse_space(space, ()).to_json(),
        objectives=tuple(Objective(metric) for metric in metrics),
        options=dict(with_defaults(TuneOptions, {"trials": max(trials, 1)})),
    )
    made = create_study(Workspace(tmp_path / "workspace"), settings)
    found = made.load(optuna.samplers.RandomSampler(seed=1))
    for number in range(trials):
        trial, state = found.ask(), states[number % len(states)]
        settings.search_space.suggest(trial)
        if len(metrics) == 1 and state is not TrialState.FAIL:
            for step in range(3):
                trial.report(0.5 if constant else number + step / 3, step)
        if state is TrialState.FAIL:
            trial.set_user_attr(STATUS, "failed")
            trial.set_user_attr(REASON, "<boom>")
            found.tell(trial, state=state)
        elif state is TrialState.COMPLETE:
            values = [0.5 if constant else number + 1.0, float(-number)]
            found.tell(trial, values[: len(metrics)])
        elif state is TrialState.PRUNED:
            found.tell(trial, state=state)
    return made


ALL = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        {"trials": 0},
        {"trials": 1},
        {"trials": 3, "states": (TrialState.FAIL,)},
        {"trials": 40, "states": ALL},
        {"trials": 12, "constant": True},
        {"trials": 12, "metrics": ("score", "$other$")},
        {"trials": 12, "space": [f"parameter-{n}=log(1e-5,1)" for n in range(30)]},
    ],
    ids=["empty", "one", "failed", "all", "constant", "pareto", "thirty"],
)
def test_figures_of_any_study(tmp_path: Path, made: dict[str, object]) -> None:
    found = study(tmp_path, **made)  # type: ignore[arg-type]
    picture, page = tmp_path / "study.png", tmp_path / "study.html"
    found.plot(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    found.plot(page)
    text = page.read_text()
    figures = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", text)
    assert len(figures) == 4
    assert all(b"<svg" in base64.b64decode(figure) for figure in figures)
    assert text.count("<tr") == 1 + 4 + len(found.trials)
    assert "&lt;train&gt;.py" in text


def test_the_page_shows_the_scripts_values(tmp_path: Path) -> None:
    found = study(tmp_path, 12, states=ALL)
    page = tmp_path / "study.html"
    found.plot(page)
    text = page.read_text()
    assert "(index)" not in text
    assert "(reverse log)" not in text
    assert "&lt;boom&gt;" in text
    assert f"<td>{found.trials[0].params['batch-size']}</td>" in text
    best = found.best_trials[0]
    assert f'<tr class="best"><td>{best.number}</td>' in text


def test_importances_have_the_names_of_the_space(tmp_path: Path) -> None:
    def plots(found: Study) -> Plots:
        space = found.settings.search_space
        return Plots(found.load(), found.settings.objectives, space, found.trials, frozenset())

    shares = plots(study(tmp_path / "many", 30)).importances
    assert shares.keys() == {p.split("=")[0] for p in MIXED} - {"epochs"}
    assert sum(shares.values()) == pytest.approx(1)
    assert plots(study(tmp_path / "few", 9)).importances == {}
    assert plots(study(tmp_path / "same", 12, constant=True)).importances == {}


def test_the_history_shows_trials_that_begin_after_earlier_results(tmp_path: Path) -> None:
    found = study(tmp_path, 6)
    objectives, space = found.settings.objectives, found.settings.search_space
    plots = Plots(found.load(), objectives, space, found.trials[4:], frozenset())
    drawing = Figure(layout="constrained")
    plots.figures[0].draw(drawing)
    assert drawing.axes[0].get_xlim() == pytest.approx((3.3, 5.7))


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a PNG file or an HTML page") as caught:
        study(tmp_path, 1).plot("study.pdf")
    assert caught.value.hint == "end the name with .png or .html"
