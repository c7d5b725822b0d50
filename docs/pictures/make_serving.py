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
from matplotlib.patches import Patch

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "benchmarks" / "results" / "serving.json"
TEAL, AMBER, GREY = "#00897b", "#ef8a17", "#607d8b"
COLOURS = {"timonel": TEAL, "bound": "#cfd8dc"}
STYLE = {
    "svg.hashsalt": "timonel", "font.size": 8, "axes.titlesize": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": GREY, "xtick.color": GREY,
    "axes.labelcolor": GREY,
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
            cut = value > 0.85 * most
            axis.text(min(value, most) + (-0.01 if cut else 0.01) * most, at, told(value),
                      ha="right" if cut else "left", va="center", color=GREY)  # fmt: skip
        axis.invert_yaxis()
        axis.set_title(title, loc="left", x=-0.6)
        axis.tick_params(left=False)
    figure.legend(
        [Patch(color=colour) for colour in (TEAL, AMBER, COLOURS["bound"])],
        ["timonel", "other servers, each at its fastest", "what none can pass"],
        loc="lower center", ncols=3, frameon=False,
    )  # fmt: skip
    figure.supxlabel("requests/s", color=GREY, fontsize=8, y=0.3 / figure.get_figheight())
    figure.tight_layout(rect=(0, 0.25 / figure.get_figheight(), 1, 1))
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


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
