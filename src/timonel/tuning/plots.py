"""Figures of a study: history, learning curves or Pareto front, importances, parameters.

Optuna's own figures show the stored names and numbers: indices instead of discrete values, and
mirrored values on reverse-log scales.
"""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import optuna
from optuna.importance import get_param_importances

from timonel.styles import number
from timonel.tuning.objectives import Objective
from timonel.tuning.parameters import Parameter
from timonel.tuning.records import TrialRecord
from timonel.tuning.space import SearchSpace

# Colours that colour-blind people can tell apart (Okabe and Ito).
_BLUE, _RED, _ORANGE, _GREY, _DARK = "#0072B2", "#D55E00", "#E69F00", "#9a9a9a", "#1f2d3d"
_MIN_FOR_IMPORTANCES = 10
_MAX_AXES = 12
_MAX_VECTORS = 200
"""Number of trials from which lines become pixels in an SVG file."""
_INACTIVE = -0.14
"""Height of parameters that a trial does not have."""
IMPORTANCE = (
    "How strongly a parameter separates the best tenth of trials from the others, as a share of "
    "the total (Optuna's PED-ANOVA)."
)


@dataclass(frozen=True)
class Figure:
    """A figure of a study.

    Args:
        caption: One sentence that explains it.
    """

    title: str
    caption: str
    draw: Callable[[Any], None]
    wide: bool = False


@dataclass
class Plots:
    """Figures of a study as it stood when it was read.

    Args:
        study: Optuna's view of the study.
        trials: Its trials, best first.
    """

    study: optuna.Study
    objectives: Sequence[Objective]
    space: SearchSpace
    trials: Sequence[TrialRecord]
    best: frozenset[int]

    def __post_init__(self) -> None:
        self._parameters = self.space.parameters
        by_number = sorted(self.trials, key=lambda trial: trial.number)
        self._done = [trial for trial in by_number if trial.status == "succeeded"]

    @property
    def figures(self) -> list[Figure]:
        """The figures, in their order on a page."""
        metric = self.objectives[0].metric
        second = Figure(
            f"Learning curves of {metric}",
            "The colour is that of the parallel coordinates; triangles end stopped trials.",
            self._curves,
        )
        if len(self.objectives) > 1:
            second = Figure(
                "Pareto front",
                "No other trial beats the marked ones in all objectives.",
                self._front,
            )
        return [
            Figure("History", "Objective of each trial, and the best so far.", self._history),
            second,
            Figure("Importances", IMPORTANCE, self._bars),
            Figure(
                "Parallel coordinates",
                f"A line for each trial, coloured by {metric}; grey ones have not succeeded.",
                self._lines,
                wide=True,
            ),
        ]

    def png(self) -> bytes:
        """Return all figures in one PNG file."""
        sheet = _figure(17, 10.5)
        sheet.suptitle(
            _text(f"{self.study.study_name}: {', '.join(map(str, self.objectives))}", 120),
            fontsize=15,
            color=_DARK,
        )
        above, below = sheet.subfigures(2, 1, height_ratios=(1, 1.1))
        places = [*above.subfigures(1, 3), below]
        for figure, place in zip(self.figures, places, strict=True):
            place.suptitle(_text(figure.title, 80), fontsize=12, color=_DARK)
            figure.draw(place)
        return _saved(sheet, "png")

    def svg(self, figure: Figure) -> bytes:
        """Return a figure as an SVG file."""
        drawn = _figure(13 if figure.wide else 5.6, 5.2 if figure.wide else 4.2)
        figure.draw(drawn)
        return _saved(drawn, "svg")

    @cached_property
    def importances(self) -> dict[str, float]:
        """Share of each parameter, largest first; empty if they cannot be computed."""
        values = {trial.values for trial in self._done}
        if len(self._done) < _MIN_FOR_IMPORTANCES or len(values) < 2:
            return {}
        names = {parameter.optuna_name: parameter.name for parameter in self._parameters}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shares = get_param_importances(self.study)
        found = {names[name]: share for name, share in shares.items() if name in names}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _history(self, place: Any) -> None:
        panels = place.subplots(len(self.objectives), sharex=True, squeeze=False)[:, 0]
        for index, (objective, axes) in enumerate(zip(self.objectives, panels, strict=True)):
            done = [(trial.number, trial.values[index]) for trial in self._done]
            _style(axes, "", objective.metric)
            axes.scatter(*_columns(done), s=22, color=_BLUE, label=f"succeeded ({len(done)})")
            better = max if objective.goal == "maximize" else min
            best = list(itertools.accumulate((value for _, value in done), better))
            axes.step([n for n, _ in done], best, where="post", color=_DARK, label="best so far")
            self._mark(axes, "stopped early", "v", _ORANGE, last=True)
            self._mark(axes, "running", "o", _GREY, last=True)
            self._mark(axes, "failed", "x", _RED)
            self._mark(axes, "infeasible", "D", _GREY)
            if _is_wide([value for _, value in done]):
                axes.set_yscale("log")
        # The numbers of a study that started from others begin after their results.
        numbers = [trial.number for trial in self.trials] or [0]
        panels[-1].set(xlabel="trial", xlim=(min(numbers) - 0.7, max(numbers) + 0.7))
        panels[-1].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        place.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center", ncols=3, fontsize=8, frameon=False,
        )  # fmt: skip

    def _mark(self, axes: Any, status: str, marker: str, color: str, *, last: bool = False) -> None:
        """Mark trials of a status at their last value, or below without one."""
        trials = [trial for trial in self.trials if trial.status == status]
        if not trials:
            return
        label = f"{status} ({len(trials)})"
        at = [(trial.number, trial.curve[-1][1]) for trial in trials if last and trial.curve]
        if at:
            axes.scatter(*_columns(at), marker=marker, s=26, color=color, label=label)
        below = [trial.number for trial in trials if not (last and trial.curve)]
        if below:
            axes.scatter(
                below, [0.03] * len(below), marker=marker, s=24, color=color,
                transform=axes.get_xaxis_transform(), label=None if at else label,
            )  # fmt: skip

    def _curves(self, place: Any) -> None:
        curves = [trial for trial in self.trials if trial.curve]
        if not curves:
            _say(place, "no trial has recorded a learning curve")
            return
        axes = place.subplots()
        _style(axes, "step", self.objectives[0].metric)
        colors, many = self._colors, len(curves) > _MAX_VECTORS
        for trial in curves:
            steps, values = _columns(trial.curve)
            best = trial.number in self.best
            known = trial.status == "succeeded"
            color = colors.to_rgba(trial.values[0]) if known else _GREY
            axes.plot(
                steps, values, color=_RED if best else color, lw=2.2 if best else 1.1,
                alpha=1 if best else 0.75, zorder=3 if best else 2, rasterized=many,
                marker="." if len(steps) < 3 else None,
                label=f"best: trial {trial.number}" if best else None,
            )  # fmt: skip
            if trial.status == "stopped early":
                axes.plot(steps[-1:], values[-1:], "v", color=_ORANGE, ms=5, zorder=4)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        if _is_wide([value for trial in curves for _, value in trial.curve]):
            axes.set_yscale("log")
        if self.best:
            axes.legend(loc="best", fontsize=8, frameon=False)

    def _front(self, place: Any) -> None:
        if not self._done:
            _say(place, "no trial has succeeded")
            return
        axes = place.subplots()
        _style(axes, self.objectives[0].metric, self.objectives[1].metric)
        for best, color, label in ((False, _GREY, "other trials"), (True, _RED, "Pareto front")):
            trials = [trial for trial in self._done if (trial.number in self.best) is best]
            points = [trial.values[:2] for trial in trials]
            axes.scatter(*_columns(points), s=26, color=color, label=f"{label} ({len(points)})")
        place.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)

    def _bars(self, place: Any) -> None:
        shares = list(self.importances.items())[:_MAX_AXES]
        if not shares:
            few = len(self._done) < _MIN_FOR_IMPORTANCES
            least = f"importances need {_MIN_FOR_IMPORTANCES} succeeded trials"
            _say(place, least if few else "all trials have the same objective")
            return
        axes = place.subplots()
        _style(axes, "importance", "")
        names = [_text(name, 22) for name, _ in shares]
        bars = axes.barh(range(len(shares)), [share for _, share in shares], color=_BLUE)
        axes.bar_label(bars, [f"{share:.0%}" for _, share in shares], padding=3, fontsize=9)
        axes.set_yticks(range(len(shares)), names, fontsize=9)
        axes.invert_yaxis()
        axes.set_xlim(0, max(share for _, share in shares) * 1.15 or 1)

    def _lines(self, place: Any) -> None:
        shown = self._parameters
        if len(shown) > _MAX_AXES:
            order = [*self.importances] or [parameter.name for parameter in shown]
            shown = tuple(p for p in shown if p.name in order[:_MAX_AXES])
            place.text(
                0.995, 0.005, f"{_MAX_AXES} of {len(self._parameters)} parameters", ha="right",
                fontsize=8, color=_DARK,
            )  # fmt: skip
        axes = place.subplots()
        axes.set_axis_off()
        columns = len(shown) + len(self.objectives)
        axes.set(xlim=(-0.1, columns - 0.4), ylim=(_INACTIVE - 0.06, 1.12))
        scales = [_normal([t.values[i] for t in self._done]) for i in range(len(self.objectives))]
        for trial in reversed(self.trials):  # the best one on top
            heights = [
                p.to_unit(trial.params[p.name]) if p.name in trial.params else _INACTIVE
                for p in shown
            ]
            # A stopped trial has a last value only.
            known = trial.status == "succeeded"
            if known:
                heights += [float(scale(v)) for scale, v in zip(scales, trial.values, strict=True)]
            axes.plot(
                range(len(heights)), heights, lw=1.3 if known else 0.7,
                color=self._colors.to_rgba(trial.values[0]) if known else _GREY,
                alpha=0.85 if known else 0.5, rasterized=len(self.trials) > _MAX_VECTORS,
            )  # fmt: skip
        for column, parameter in enumerate(shown):
            ticks = _thinned(parameter)
            if any(parameter.name not in trial.params for trial in self.trials):
                ticks = [(_INACTIVE, "inactive"), *ticks]
            _axis(axes, column, columns, parameter.name, ticks)
        for column, (objective, scale) in enumerate(
            zip(self.objectives, scales, strict=True), len(shown)
        ):
            ticks = [(h, number(float(scale.inverse(h)))) for h in (0, 0.25, 0.5, 0.75, 1)]
            _axis(axes, column, columns, objective.metric, ticks if self._done else [])

    @cached_property
    def _colors(self) -> Any:
        """Colours of the first objective; dark ones are good."""
        from matplotlib.cm import ScalarMappable  # noqa: PLC0415 - see _figure

        cmap = "viridis_r" if self.objectives[0].goal == "maximize" else "viridis"
        return ScalarMappable(_normal([trial.values[0] for trial in self._done]), cmap)


def _figure(width: float, height: float) -> Any:
    # Without pyplot, which keeps figures. Importing matplotlib takes half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure as Drawing  # noqa: PLC0415

    made = Drawing(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def _saved(figure: Any, form: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # Names may have letters that the font lacks; they become boxes.
        warnings.simplefilter("ignore")
        figure.savefig(file, format=form, dpi=110)
    return file.getvalue()


def _style(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(_text(x, 40))
    axes.set_ylabel(_text(y, 40))
    axes.grid(color="#e6e6e6", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _axis(axes: Any, x: int, columns: int, name: str, ticks: list[tuple[float, str]]) -> None:
    from matplotlib.patheffects import withStroke  # noqa: PLC0415 - see _figure

    most = max(9, 130 // columns)
    outline = [withStroke(linewidth=2.5, foreground="white")]
    axes.plot([x, x], [0, 1], color=_DARK, lw=1)
    axes.text(x, 1.06, _text(name, most), ha="center", fontsize=10, weight="bold", color=_DARK)
    for height, label in ticks:
        axes.text(
            x + 0.04, height, _text(label, most), va="center", fontsize=8, color=_DARK,
            path_effects=outline,
        )  # fmt: skip


def _thinned(parameter: Parameter) -> list[tuple[float, str]]:
    """Return ticks of a parameter that do not overlap: its ends, and round numbers between."""
    from matplotlib.ticker import LogLocator, MaxNLocator  # noqa: PLC0415 - see _figure

    values: Sequence[Any] = parameter.values
    if not values:
        low, high = parameter.low or 0.0, parameter.high or 0.0
        locator = LogLocator() if parameter.scale == "log" else MaxNLocator(5)
        inner = [float(f"{value:.12g}") for value in locator.tick_values(low, high)]
        values = [low, *(value for value in inner if parameter.contains(value)), high]
    ticks = [(parameter.to_unit(v), v if isinstance(v, str) else number(v)) for v in values]
    kept = [ticks[0]]
    for tick in ticks[1:-1]:
        if tick[0] - kept[-1][0] > 0.045 and ticks[-1][0] - tick[0] > 0.045:
            kept.append(tick)
    return [*kept, ticks[-1]]


def _normal(values: Sequence[float]) -> Any:
    """Scale of values; logarithmic if they differ by orders of magnitude."""
    from matplotlib.colors import LogNorm, Normalize  # noqa: PLC0415 - see _figure

    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        return Normalize(low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2)
    return (LogNorm if _is_wide(values) else Normalize)(low, high)


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) > 100 * min(values)


def _columns(points: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]


def _say(place: Any, text: str) -> None:
    place.text(0.5, 0.5, text, ha="center", va="center", color=_GREY, fontsize=11)


def _text(text: str, most: int) -> str:
    """Shorten a text in the middle; dollar signs are not formulas."""
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"
    return text.replace("$", r"\$")
