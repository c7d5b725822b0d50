"""Draws the pictures of training from the figures that the benchmark has left.

python docs/pictures/make_training.py
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.patches import Patch

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "benchmarks" / "results" / "training.json"
TEAL, AMBER, RED = "#00897b", "#ef8a17", "#d34a4a"
INK = "#697a83"
"""The colour of text and axes: it reads on white and on black, and pictures have no background."""
PHASES = {
    "until it is noticed": RED,
    "until all are down": "#ef9a9a",
    "delay before the next start": "#b0bec5",
    "until all are ready": TEAL,
    "until the next step": "#80cbc4",
}
"""What a restart consists of, in its order."""
STYLE = {
    "svg.hashsalt": "timonel", "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.labelcolor": INK, "axes.titlecolor": INK, "text.color": INK, "legend.frameon": False,
}  # fmt: skip


def main() -> None:
    """Write the pictures beside this file."""
    mpl.rcParams.update(STYLE)
    parts = json.loads(FIGURES.read_text())["parts"]
    draw_curve(parts["curve"]["data"])
    if parts["workers"]["data"]:
        draw_workers(parts["workers"]["data"])
    draw_kill(parts["kills"]["data"])


def draw_curve(found: Mapping[str, Any]) -> None:
    """Draw the loss of a job that was killed over that of one that was not."""
    figure, (axis, below) = plt.subplots(
        2, 1, figsize=(7.2, 4.2), sharex=True, height_ratios=[4, 1]
    )
    whole, killed = (
        {int(step): loss for step, loss in found[name].items()} for name in ("whole", "killed")
    )
    axis.plot(whole.keys(), whole.values(), color=AMBER, lw=5, alpha=0.55, label="left alone",
              solid_capstyle="round")  # fmt: skip
    axis.plot(killed.keys(), killed.values(), color=TEAL, lw=1.4,
              label=f"killed {len(found['kills'])} times")  # fmt: skip
    top = axis.get_ylim()[1]
    for kill in found["kills"]:
        for each in (axis, below):
            each.axvline(kill["step"], color=RED, lw=0.9, ls=(0, (4, 3)))
        axis.text(kill["step"], top, f" {kill['task'].partition('-')[0]}", color=RED, fontsize=7.5,
                  va="top")  # fmt: skip
    axis.set_ylabel("loss, mean of the epoch so far")
    axis.legend(loc="upper right", bbox_to_anchor=(1, 0.9))
    apart = [abs(killed[step] - whole[step]) for step in whole]
    below.plot(whole.keys(), apart, color=TEAL, lw=1.4)
    below.set_ylabel("apart")
    if any(apart):
        below.set_ylim(-0.05 * max(apart), 1.2 * max(apart))
    else:
        below.set_ylim(-0.1, 1)
        below.set_yticks([0])
    below.set_xlabel("step")
    save(figure, "kills")


def draw_workers(found: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the throughput by number of workers."""
    figure, axis = plt.subplots(figsize=(5.2, 3.2))
    for name, colour, shift in (("timonel", TEAL, -0.19), ("by hand", AMBER, 0.19)):
        rates = {int(count): rate for count, rate in found[name].items()}
        bars = axis.bar([count + shift for count in rates], rates.values(), 0.36, color=colour,
                        label=name)  # fmt: skip
        axis.bar_label(bars, fmt="{:,.0f}", fontsize=7.5, color=INK, padding=2)
    axis.set_xticks([int(count) for count in found["timonel"]])
    axis.set_xlabel("workers, all on the same two cores")
    axis.set_ylabel("examples per second")
    axis.legend(loc="upper right")
    save(figure, "workers")


def draw_kill(found: Mapping[str, Any]) -> None:
    """Draw what happens between each kill and the next step, for both sides."""
    figure, axis = plt.subplots(figsize=(7.2, 2.9))
    ticks: list[tuple[float, str]] = []
    place = 0.0
    for number, kill in enumerate(found["ours"], 1):
        draw_phases(axis, place, kill, found["phases"])
        ticks.append((place, f"timonel, kill {number}"))
        place += 1
    place += 0.4
    for number, kill in enumerate(found["bare"], 1):
        took = kill["resumed_at"] - kill["at"]
        axis.barh(place, took, height=0.6, color=AMBER)
        axis.text(took, place, f"  {took:.1f} s", va="center", color=INK)
        ticks.append((place, f"by hand, kill {number}"))
        place += 1
    axis.invert_yaxis()
    axis.set_yticks(*zip(*ticks, strict=True))
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel("seconds from SIGKILL of a worker to the next trained step")
    parts = [Patch(color=colour, label=name) for name, colour in PHASES.items()]
    axis.legend(handles=parts, loc="upper right", fontsize=8)
    save(figure, "kill-times")


def draw_phases(
    axis: Any, place: float, kill: Mapping[str, float], phases: Sequence[Mapping[str, Any]]
) -> None:
    """Draw one bar of ours, in parts."""
    inside = [each for each in phases if kill["at"] <= each["at"] <= kill["resumed_at"]]
    changes = {
        "noticed": first(inside, lambda each: each["state"] == "restarting"),
        "all down": first(inside, lambda each: each["restarts"] > inside[0]["restarts"]),
        "started again": first(inside, lambda each: each["generation"] > inside[0]["generation"]),
        "ready": first(inside, lambda each: each["state"] == "running"),
    }
    edges = [kill["at"], *changes.values(), kill["resumed_at"]]
    for (begin, end), colour in zip(itertools.pairwise(edges), PHASES.values(), strict=True):
        axis.barh(place, end - begin, left=begin - kill["at"], height=0.6, color=colour)
    took = kill["resumed_at"] - kill["at"]
    axis.text(took, place, f"  {took:.1f} s", va="center", color=INK)


def first(phases: Sequence[Mapping[str, Any]], holds: Callable[[Mapping[str, Any]], bool]) -> float:
    """Return when something held for the first time."""
    return float(next(each["at"] for each in phases if holds(each)))


def save(figure: Any, name: str) -> None:
    """Write a picture without a background: it is read on light and on dark pages."""
    figure.tight_layout()
    figure.savefig(HERE / f"{name}.svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
