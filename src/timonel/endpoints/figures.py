"""Shared style of figures."""

from __future__ import annotations

import io
import math
from typing import Any


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib; the size is in inches."""
    # Without pyplot, which keeps figures. Importing matplotlib takes half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style(axes: Any, *, legend: bool = True) -> None:
    """Set grid, frame and legend of axes."""
    axes.grid(color="#e6e6e6", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        # Above the axes, so that it covers no data.
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, fontsize=8, frameon=False)


def set_log_ticks(axes: Any) -> None:
    """Make the y axis logarithmic, with ticks that do not overlap. Plot the data first."""
    from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter  # noqa: PLC0415

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 2 else (1,)
    # A smaller range may contain fewer than two of these ticks.
    locator = AutoLocator() if decades < math.log10(5) else LogLocator(subs=steps)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def to_svg(figure: Any) -> bytes:
    """Return a figure as an SVG file; the same figure gives the same bytes."""
    from matplotlib import rc_context  # noqa: PLC0415

    file = io.BytesIO()
    with rc_context({"svg.hashsalt": "timonel"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
