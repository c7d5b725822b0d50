"""Figures of simulations: load and capacity, replicas, latency."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from timonel.endpoints.autoscaling.simulation import Simulation
from timonel.endpoints.autoscaling.traces import Levels
from timonel.errors import SpecError
from timonel.storage import write_bytes

# Colours that colour-blind people can tell apart (Okabe and Ito).
_BLUE, _RED, _ORANGE, _DARK = "#0072B2", "#D55E00", "#E69F00", "#1f2d3d"
_POINTS = 1500
_UNITS = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"), (86400.0, "days"))
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2d3d; max-width: 1100px;
  margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.6em } img { width: 100% }
table { border-collapse: collapse } td { padding: .2em 1.5em .2em 0 }
"""


def write_figure(path: Path, simulation: Simulation, title: str, facts: Mapping[str, str]) -> None:
    """Write a figure as SVG, or as HTML with facts.

    Raises:
        SpecError: The name ends in neither ``.svg`` nor ``.html``.
        InputError: The file cannot be written.
    """
    ending = path.suffix.lower()
    check_ending(path)
    picture = svg(simulation, title)
    write_bytes(path, picture if ending == ".svg" else _page(picture, title, facts).encode())


def check_ending(path: Path) -> None:
    """Check that a figure can have this name.

    Raises:
        SpecError: It ends in neither ``.svg`` nor ``.html``.
    """
    if path.suffix.lower() not in {".svg", ".html"}:
        raise SpecError(
            f"a figure is an SVG file or an HTML page, got {str(path)!r}",
            hint="end the name with .svg or .html",
        )


def svg(simulation: Simulation, title: str) -> bytes:
    """Return the figure as an SVG file."""
    # Without pyplot, which keeps figures. Importing matplotlib takes half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title.replace("$", r"\$"), fontsize=13, color=_DARK)
    load, replicas, latency = figure.subplots(3, 1, sharex=True)
    seconds = len(simulation.arrivals)
    unit_s, unit = max(item for item in _UNITS if item[0] * 3 <= seconds or item[0] == 1)
    group = max(1, -(-seconds // _POINTS))
    x = np.arange(0, seconds, group) / unit_s

    capacity = simulation.ready * simulation.slots
    load.fill_between(x, _grouped(capacity, group, np.min), step="post", color=_BLUE, alpha=0.18,
                      lw=0, label="capacity of ready replicas")  # fmt: skip
    load.step(x, _grouped(simulation.in_flight, group, np.max), where="post", color=_DARK, lw=1.1,
              label="requests in flight")  # fmt: skip
    over = _grouped(simulation.in_flight > capacity + 1e-9, group, np.max) > 0
    load.fill_between(x, 0, 1, where=over, step="post", color=_RED, alpha=0.25, lw=0,
                      transform=load.get_xaxis_transform(), label="over target")  # fmt: skip
    most = float(max(capacity.max(), simulation.in_flight.max()))
    # A short queue must not hide the rest of the day.
    load.set_ylim(0, max(1.0, min(most, 4 * float(np.quantile(simulation.in_flight, 0.99)))) * 1.08)
    replicas.step(x, _grouped(simulation.requested, group, np.max), where="post", color=_ORANGE,
                  lw=1.6, label="requested")  # fmt: skip
    replicas.step(x, _grouped(simulation.ready, group, np.min), where="post", color=_BLUE, lw=1.2,
                  label="ready")  # fmt: skip
    replicas.set_ylim(bottom=0)
    latency.step(x, _grouped(simulation.latencies_s, group, np.max), where="post", color=_DARK,
                 lw=1.1, label="latency of requests, by arrival")  # fmt: skip
    latency.set_yscale("log")
    latency.set_ylim(bottom=simulation.model.service_s / 2)
    for axes, name in (
        (load, "requests in flight"),
        (replicas, "replicas"),
        (latency, "latency in s"),
    ):
        axes.set_ylabel(name)
        axes.grid(color="#e6e6e6", lw=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        # Above the axes, so that it covers no data.
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=8, frameon=False)
    latency.set(xlabel=unit, xlim=(0, seconds / unit_s))
    return _saved(figure)


def _grouped(values: Any, group: int, reduce: Callable[..., Any]) -> Levels:
    """Reduce each group of seconds to one value."""
    whole = len(values) // group * group
    parts = reduce(values[:whole].reshape(-1, group), axis=1)
    rest = [reduce(values[whole:])] if whole < len(values) else []
    found: Levels = np.concatenate([parts, rest]).astype(np.float64)
    return found


def _saved(figure: Any) -> bytes:
    file = io.BytesIO()
    # Without a date, the same simulation gives the same bytes.
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _page(picture: bytes, title: str, facts: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in facts.items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f'<meta name=viewport content="width=device-width"><style>{_STYLE}</style>'
        f'<h1>{escape(title)}</h1><img alt="Load, replicas and latency over time" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(picture).decode()}">'
        f"<table>{rows}</table></html>\n"
    )
