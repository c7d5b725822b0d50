"""Draws path.svg from what a run of the demo has left.

python scripts/demo.py demo && python docs/pictures/make_path.py demo
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import timonel
from timonel.units import format_seconds

TEAL, AMBER = "#00897b", "#ef8a17"
INK = "#697a83"
"""The colour of text and axes: it reads on white and on black, and pictures have no background."""
STYLE = {
    "svg.hashsalt": "timonel", "font.size": 8, "axes.titlesize": 9, "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": INK,
    "ytick.color": INK,
}  # fmt: skip


def main(folder: Path, picture: Path) -> None:
    """Write the picture of the demo in ``folder``."""
    mpl.rcParams.update(STYLE)
    figure, axes = plt.subplots(1, 5, figsize=(12.5, 3.0), width_ratios=[1, 1, 1.25, 1, 1.6])
    workspace = timonel.find_workspace(folder / ".timonel", create=False)
    version = timonel.ModelRepository(workspace.models).get("digits")
    report = json.loads((folder / "demo.json").read_text())
    draw_files(axes[0], folder)
    draw_dataset(axes[1], timonel.Dataset.open(folder / "data" / "digits"))
    draw_run(axes[2], timonel.read_run(version.run_id, workspace=workspace).record)
    draw_version(axes[3], version)
    draw_server(axes[4], report)
    for axis in axes[:4]:
        axis.annotate(
            "", (1.22, 0.5), (1.05, 0.5), "axes fraction",
            arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.5}, annotation_clip=False,
        )  # fmt: skip
    total = format_seconds(sum(report["took_s"].values()))
    figure.text(
        0.5, 0.01, f"one run of 'make demo': all of it, twice, in {total} on two cores",
        ha="center", color=INK,
    )  # fmt: skip
    figure.subplots_adjust(left=0.02, right=0.985, top=0.84, bottom=0.25, wspace=0.42)
    figure.savefig(picture, transparent=True, metadata={"Date": None})


def draw_files(axis, folder: Path) -> None:
    """Draw a sample of the raw images."""
    labels = sorted(path for path in (folder / "digits").iterdir() if path.is_dir())
    sheet = Image.new("L", (5 * 9 + 1, 4 * 9 + 1), 64)
    for number in range(20):
        file = sorted(labels[number % 10].iterdir())[number // 10]
        sheet.paste(Image.open(file), (1 + 9 * (number % 5), 1 + 9 * (number // 5)))
    axis.imshow(sheet, cmap="gray", interpolation="nearest")
    axis.set_axis_off()
    axis.set_title("raw files", fontweight="bold")
    axis.text(0.5, -0.13, "label folders of PNG", ha="center", transform=axis.transAxes)


def draw_dataset(axis, dataset) -> None:
    """Draw the records of each split, by label."""
    splits = ("train", "validation", "test")
    left = [0] * len(splits)
    for number, label in enumerate(dataset.labels):
        counts = [dataset.manifest.label_counts[split][label] for split in splits]
        axis.barh(splits, counts, left=left, height=0.5,
                  color=plt.get_cmap("viridis")(number / 9))  # fmt: skip
        left = [a + b for a, b in zip(left, counts, strict=True)]
    for place, total in enumerate(left):
        axis.text(total, place, f" {total}", va="center")
    axis.invert_yaxis()
    axis.set_xlim(0, max(left) * 1.25)
    axis.set_yticks([])
    for place, split in enumerate(splits):
        axis.text(0, place - 0.27, split, va="bottom", fontsize=7, color=INK)
    axis.set_xticks([])
    axis.spines[:].set_visible(False)
    axis.set_title("Dataset", fontweight="bold")
    text = f"{len(dataset.manifest.shards)} shards, {dataset.digest[7:15]}…"
    axis.text(0.5, -0.13, text, ha="center", transform=axis.transAxes)


def draw_run(axis, run) -> None:
    """Draw the curves of the training run."""
    for name, color in (("loss", TEAL), ("val_loss", AMBER)):
        points = run.series[name]
        axis.plot([p.epoch + 1 for p in points], [p.value for p in points], color=color, label=name)
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title("Job and Run", fontweight="bold")
    axis.text(0.5, -0.22, "epoch", ha="center", transform=axis.transAxes)


def draw_version(axis, version) -> None:
    """Draw the confusion matrix of the check."""
    check = version.check
    # Cells without a file have no colour: they would be white boxes on a dark page.
    axis.imshow(np.ma.masked_equal(check.confusion, 0), cmap="Greens", vmin=0)
    for row, counts in enumerate(check.confusion):
        for column, count in enumerate(counts):
            if count:
                color = "white" if row == column else "#c62828"
                axis.text(column, row, count, ha="center", va="center", color=color, fontsize=6)
    axis.set_xticks(range(10), check.labels, fontsize=6)
    axis.set_yticks(range(10), check.labels, fontsize=6)
    axis.tick_params(length=0)
    axis.set_title(f"Model: {version}", fontweight="bold")
    text = f"{check.accuracy:.1%} of {check.examples} held-out files"
    axis.text(0.5, -0.2, text, ha="center", transform=axis.transAxes)


def draw_server(axis, report) -> None:
    """Draw each request's latency, and which version was the newest one served."""
    start = report["asked"][0][0]
    times = [moment - start for moment, _ in report["asked"]]
    axis.scatter(
        times, [ms for _, ms in report["asked"]], s=2, color=TEAL, rasterized=True, linewidths=0
    )
    axis.set_yscale("log")
    ticks = [ms for ms in (1, 2, 5, 10, 20, 50, 100, 200, 500) if _is_inside(axis, ms)]
    axis.set_yticks(ticks, [f"{ms} ms" for ms in ticks])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    changes = [*report["versions"], {"t": start + times[-1], "version": None}]
    for first, second in itertools.pairwise(changes):
        if first["version"] != report["versions"][0]["version"]:
            axis.axvspan(first["t"] - start, second["t"] - start, color=AMBER, alpha=0.35, lw=0)
            axis.text(first["t"] - start, axis.get_ylim()[1], f"version {first['version']} ",
                      ha="right", va="top", color=AMBER)  # fmt: skip
    axis.set_title("Server", fontweight="bold")
    text = f"s · {report['requests']:,} requests, {report['failed']} failed"
    axis.text(0.5, -0.22, text, ha="center", transform=axis.transAxes)


def _is_inside(axis, value: float) -> bool:
    low, high = axis.get_ylim()
    return low <= value <= high


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).with_name("path.svg"))
