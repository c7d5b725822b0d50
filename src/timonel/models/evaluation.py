"""Confusion matrix of a classifier: counts, accuracy, table and picture.

A confusion matrix is a tuple of rows: one per true class, with a count per predicted class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from timonel.storage.atomic import ASIDE_PREFIX

Confusion = tuple[tuple[int, ...], ...]

# Above these numbers of classes, the counts and the names in the picture are not legible.
_MAX_COUNTS = 30
_MAX_NAMES = 60


def confusion_matrix(pairs: Iterable[tuple[int, int]], classes: int) -> Confusion:
    """Count pairs of (true, predicted) class numbers."""
    counts = [[0] * classes for _ in range(classes)]
    for true, predicted in pairs:
        counts[true][predicted] += 1
    return tuple(tuple(row) for row in counts)


def accuracy(confusion: Confusion) -> float | None:
    """Return the share of correct predictions; None without examples."""
    return _ratio(sum(row[i] for i, row in enumerate(confusion)), sum(map(sum, confusion)))


def write_confusion_png(
    path: Path, confusion: Confusion, labels: Sequence[str], *, title: str | None = None
) -> None:
    """Draw a confusion matrix as a PNG file.

    The colour is the share of the true class; cells show counts.

    Args:
        path: The PNG file, written atomically.
    """
    figure = _draw(confusion, labels, title)
    aside = path.with_name(f"{ASIDE_PREFIX}{path.name}")
    figure.savefig(aside, format="png", dpi=150, metadata={"Software": None})
    aside.replace(path)


def _draw(confusion: Confusion, labels: Sequence[str], title: str | None) -> Any:
    # Without pyplot: no display, no state, nothing to close. Importing matplotlib takes half a
    # second, so only drawing imports it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    classes = len(labels)
    side = min(12.0, max(4.2, 2.2 + 0.55 * classes))
    figure = Figure(figsize=(side + 1.0, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shares = [[_ratio(count, sum(row)) or 0.0 for count in row] for row in confusion]
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    share = accuracy(confusion)
    found = "no examples" if share is None else f"accuracy {share:.1%}"
    total = sum(map(sum, confusion))
    axes.set_title(" · ".join(filter(None, (title, found, f"{total} examples"))), fontsize=11)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    _name_axes(axes, labels)
    if classes <= _MAX_COUNTS:
        _write_counts(axes, confusion, shares)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, format=lambda value, _: f"{value:.0%}")
    bar.set_label("share of the true class")
    bar.outline.set_visible(False)
    return figure


def _name_axes(axes: Any, labels: Sequence[str]) -> None:
    step = -(-len(labels) // _MAX_NAMES)
    places = range(0, len(labels), step)
    names = [_shorten(labels[place]) for place in places]
    size = 10 if len(labels) <= 12 else 7 if len(labels) <= _MAX_COUNTS else 5
    slanted = sum(map(len, names)) > 40 or max(map(len, names), default=0) > 12
    axes.set_xticks(places, names, fontsize=size, rotation=45 if slanted else 0)
    if slanted:
        for text in axes.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(places, names, fontsize=size)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _write_counts(axes: Any, confusion: Confusion, shares: list[list[float]]) -> None:
    size = 11 if len(confusion) <= 12 else 6
    for true, row in enumerate(confusion):
        for predicted, count in enumerate(row):
            if count:
                color = "white" if shares[true][predicted] > 0.55 else "#1f2d3d"
                axes.text(
                    predicted, true, str(count), ha="center", va="center", color=color, size=size
                )


def _shorten(label: str, most: int = 18) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
