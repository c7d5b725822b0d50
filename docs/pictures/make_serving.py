"""Draws the picture of serving from the figures that the benchmark has left.

python docs/pictures/make_serving.py
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.patches import Patch, Polygon

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "benchmarks" / "results" / "serving.json"
TEAL, AMBER = "#00897b", "#ef8a17"
INK = "#697a83"
"""The colour of text and axes: it reads on white and on black, and pictures have no background."""
COLOURS = {"timonel": TEAL, "bound": "#a9b7be"}
STYLE = {
    "svg.hashsalt": "timonel", "font.size": 8, "axes.titlesize": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "text.color": INK,
}  # fmt: skip


def main() -> None:
    """Write the picture beside this file, or where it is told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--picture", type=Path, default=HERE / "serving.svg")
    options = parser.parse_args()
    mpl.rcParams.update(STYLE)
    parts = json.loads(options.figures.read_text())["parts"]
    draw(
        {f"{title}: {table['what']}": table["sides"]
         for part in parts.values() for title, table in part["data"].items() if "sides" in table},
        options.picture,
    )  # fmt: skip


def draw(tables: Mapping[str, Mapping[str, Any]], picture: Path) -> None:
    """Draw the throughput of each side: a plot for each case and protocol."""
    rows = -(-len(tables) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(9, 2.1 * rows), squeeze=False)
    for axis in axes.flat[len(tables) :]:
        axis.remove()
    for axis, (title, sides) in zip(axes.flat, tables.items(), strict=False):
        shown = chosen(sides)
        rates = [rate(sides[name]) for name in shown]
        colours = [COLOURS.get(sides[name]["kind"], AMBER) for name in shown]
        axis.barh(shown, rates, color=colours)
        # A bound that is far away would leave nothing to see of the others: it is cut.
        served = [rate(side) for side in sides.values() if side["kind"] != "bound"]
        most = 1.6 * max(served, default=0) or max(rates, default=1)
        axis.set_xlim(0, most)
        for at, value in enumerate(rates):
            inside = value > 0.85 * most
            axis.text(min(value, most) + (-0.01 if inside else 0.01) * most, at, told(value),
                      ha="right" if inside else "left", va="center",
                      color="black" if inside else INK)  # fmt: skip
            if value > most:
                mark_cut(axis, 0.62 * most, at)
        axis.invert_yaxis()
        axis.set_title(title, loc="left", x=-0.6)
        axis.tick_params(left=False)
    figure.legend(
        [Patch(color=colour) for colour in (TEAL, AMBER, COLOURS["bound"])],
        ["timonel", "other servers, each at its fastest",
         "for comparison: no server, or no model (echo); // is a bar cut short"],
        loc="lower center", ncols=3, frameon=False,
    )  # fmt: skip
    figure.supxlabel("requests/s", color=INK, fontsize=8, y=0.3 / figure.get_figheight())
    figure.tight_layout(rect=(0, 0.25 / figure.get_figheight(), 1, 1))
    figure.savefig(picture, transparent=True, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def mark_cut(axis: Any, x: float, y: float) -> None:
    """Mark a bar as longer than its plot by two slanted gaps."""
    width = 0.012 * axis.get_xlim()[1]
    for left in (x, x + 2.5 * width):
        corners = [(left, y + 0.42), (left + width, y + 0.42), (left + 3 * width, y - 0.42),
                   (left + 2 * width, y - 0.42)]  # fmt: skip
        axis.add_patch(Polygon(corners, color="white", lw=0, gid="cut"))


def chosen(sides: Mapping[str, Any]) -> list[str]:
    """Return all of ours and the bounds that have figures, and the fastest setting of each peer."""
    there = sorted(
        (name for name in sides if rate(sides[name])), key=lambda name: -rate(sides[name])
    )
    peers: dict[str, str] = {}
    for name in there:
        peers.setdefault(sides[name]["kind"], name)
    return [name for name in there
            if sides[name]["kind"] in COLOURS or peers[sides[name]["kind"]] == name]  # fmt: skip


def told(value: float) -> str:
    """Return a rate in as many digits as matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def rate(side: Mapping[str, Any]) -> float:
    """Return the median of the windows; 0 where it failed."""
    samples = side["samples"]
    if side["failed"] or not samples:
        return 0.0
    return float(statistics.median(sample["rate"] for sample in samples))


if __name__ == "__main__":
    main()
