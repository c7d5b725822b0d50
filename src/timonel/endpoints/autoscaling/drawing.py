"""Figures of simulations: load and capacity, replicas, latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from timonel import pages
from timonel.endpoints import figures
from timonel.endpoints.autoscaling.simulation import Simulation
from timonel.endpoints.autoscaling.traces import Levels
from timonel.pages import BLUE, DARK, ORANGE, RED
from timonel.storage import write_bytes

ENDINGS = (".svg", ".html")
_POINTS = 1500
_UNITS = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"), (86400.0, "days"))


def write_figure(path: Path, simulation: Simulation, title: str, facts: Mapping[str, str]) -> None:
    """Write a figure as SVG, or as HTML with facts."""
    pages.check_ending(path, "a figure", ENDINGS)
    picture = svg(simulation, title)
    if path.suffix.lower() == ".html":
        image = pages.image(picture, "Load, replicas and latency over time")
        picture = pages.page(title, image + pages.table(facts.items())).encode()
    write_bytes(path, picture)


def svg(simulation: Simulation, title: str) -> bytes:
    """Return the figure as an SVG file."""
    figure = figures.new_figure(11, 7.5)
    figure.suptitle(title.replace("$", r"\$"), fontsize=13, color=DARK)
    load, replicas, latency = figure.subplots(3, 1, sharex=True)
    seconds = len(simulation.arrivals)
    unit_s, unit = max(item for item in _UNITS if item[0] * 3 <= seconds or item[0] == 1)
    group = max(1, -(-seconds // _POINTS))
    x = np.arange(0, seconds, group) / unit_s

    capacity = simulation.ready * simulation.slots
    load.fill_between(x, _grouped(capacity, group, np.min), step="post", color=BLUE, alpha=0.18,
                      lw=0, label="capacity of ready replicas")  # fmt: skip
    load.step(x, _grouped(simulation.in_flight, group, np.max), where="post", color=DARK, lw=1.1,
              label="requests in flight")  # fmt: skip
    over = _grouped(simulation.in_flight > capacity + 1e-9, group, np.max) > 0
    load.fill_between(x, 0, 1, where=over, step="post", color=RED, alpha=0.25, lw=0,
                      transform=load.get_xaxis_transform(), label="over target")  # fmt: skip
    most = float(max(capacity.max(), simulation.in_flight.max()))
    # A short queue must not hide the rest of the day.
    load.set_ylim(0, max(1.0, min(most, 4 * float(np.quantile(simulation.in_flight, 0.99)))) * 1.08)
    replicas.step(x, _grouped(simulation.requested, group, np.max), where="post", color=ORANGE,
                  lw=1.6, label="requested")  # fmt: skip
    replicas.step(x, _grouped(simulation.ready, group, np.min), where="post", color=BLUE, lw=1.2,
                  label="ready")  # fmt: skip
    replicas.set_ylim(bottom=0)
    latency.step(x, _grouped(simulation.latencies_s, group, np.max), where="post", color=DARK,
                 lw=1.1, label="latency of requests, by arrival")  # fmt: skip
    latency.set_ylim(bottom=simulation.model.service_s / 2)
    figures.set_log_ticks(latency)
    for axes, name in (
        (load, "requests in flight"),
        (replicas, "replicas"),
        (latency, "latency in s"),
    ):
        axes.set_ylabel(name)
        figures.style(axes)
    latency.set(xlabel=unit, xlim=(0, seconds / unit_s))
    return figures.to_svg(figure)


def _grouped(values: Any, group: int, reduce: Callable[..., Any]) -> Levels:
    """Reduce each group of seconds to one value."""
    whole = len(values) // group * group
    parts = reduce(values[:whole].reshape(-1, group), axis=1)
    rest = [reduce(values[whole:])] if whole < len(values) else []
    found: Levels = np.concatenate([parts, rest]).astype(np.float64)
    return found
