"""Report of a rollout: latency and errors by version over time, as an HTML page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timonel import pages
from timonel.endpoints import figures
from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.documents import Point, Rollout, RolloutFolder, RolloutState
from timonel.endpoints.rollouts.sequential import bounds
from timonel.pages import BLUE, RED
from timonel.storage import write_bytes

_ALPHA = 0.05


def write_report(path: Path, documents: RolloutFolder, endpoint: str) -> None:
    """Write the report of a rollout."""
    write_bytes(path, report_page(documents, endpoint).encode())


def report_page(documents: RolloutFolder, endpoint: str) -> str:
    """Return the report of a rollout as an HTML page."""
    rollout, state = documents.rollout(), documents.state() or RolloutState()
    points = cumulated(documents.points())
    title = f"{endpoint}: rollout {documents.number} to version {rollout.to}"
    picture = draw(rollout, points) if points else None
    return _page(title, rollout, state, picture)


def cumulated(points: Sequence[Point]) -> list[Point]:
    """Return points with the counts since the beginning of their step."""
    found: list[Point] = []
    for point in points:
        before = found[-1].counts if found and found[-1].percent == point.percent else {}
        counts = {
            version: before.get(version, Counts()) + point.counts.get(version, Counts())
            for version in {*before, *point.counts}
        }
        found.append(Point(at=point.at, percent=point.percent, counts=counts))
    return found


def draw(rollout: Rollout, points: Sequence[Point]) -> bytes:
    """Return the figure as SVG."""
    has_pairs = any(each.pairs for point in points for each in point.counts.values())
    names = ("share", "latency", "errors", *(("agreement",) if has_pairs else ()))
    figure = figures.new_figure(11, 2.4 * len(names) + 0.6)
    axes = dict(zip(names, figure.subplots(len(names), 1, sharex=True), strict=True))
    begun = rollout.created_at
    times = [0.0, *(point.at - begun for point in points)]
    shares = [point.percent for point in points]
    axes["share"].step(times, [shares[0], *shares], where="pre", color=RED)
    # Before the first step and after the last one nothing is compared.
    points = [point for point in points if 0 < point.percent < 100] or points
    x = [point.at - begun for point in points]
    axes["share"].set(ylabel=f"% to version {rollout.to}", ylim=(0, 104))
    for version, colour in ((rollout.base, BLUE), (rollout.to, RED)):
        own = [point.counts.get(version, Counts()) for point in points]
        _latency(axes["latency"], x, own, version, colour)
        _rate(axes["errors"], x, [(c.errors, c.requests) for c in own], version, colour)
    if has_pairs:
        own = [point.counts.get(rollout.to, Counts()) for point in points]
        agreed = [(c.agreements, c.pairs) for c in own]
        _rate(axes["agreement"], x, agreed, rollout.to, RED)
        axes["agreement"].set(ylabel="agreement in %")
    axes["latency"].set(ylabel="latency in ms")
    figures.set_log_ticks(axes["latency"])
    axes["errors"].set(ylabel="error rate in %", ylim=(0, None))
    for each in axes.values():
        for before, after in itertools.pairwise(points):
            if before.percent != after.percent:
                each.axvline(before.at - begun, color="#bbbbbb", lw=0.8, ls=":")
        figures.style(each, legend=each is not axes["share"])
    axes[names[-1]].set(xlabel="seconds since the start")
    return figures.to_svg(figure)


def _latency(axes: Any, x: list[float], counts: list[Counts], version: int, colour: str) -> None:
    for share, style in ((0.5, "-"), (0.99, "--")):
        found = [max(0.5, c.quantile_ms(share)) if c.timed else math.nan for c in counts]
        limits = [c.quantile_bounds_ms(share, _ALPHA) for c in counts]
        low = [max(0.5, limit[0]) for limit in limits]
        # Until there is an upper bound, no band is drawn.
        high = [limit[1] if math.isfinite(limit[1]) else math.nan for limit in limits]
        axes.plot(x, found, style, color=colour, lw=1.3,
                  label=f"version {version}, p{share * 100:g}")  # fmt: skip
        axes.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)


def _rate(
    axes: Any, x: list[float], counts: list[tuple[int, int]], version: int, colour: str
) -> None:
    rates = [100 * part / total if total else math.nan for part, total in counts]
    limits = [bounds(part, total, _ALPHA) if total else (math.nan,) * 2 for part, total in counts]
    axes.plot(x, rates, color=colour, lw=1.3, label=f"version {version}")
    axes.fill_between(x, [100 * low for low, _ in limits], [100 * high for _, high in limits],
                      color=colour, alpha=0.12, lw=0)  # fmt: skip


def _page(title: str, rollout: Rollout, state: RolloutState, picture: bytes | None) -> str:
    facts = {
        "state": str(state.phase),
        "reason": state.message,
        "steps": ", ".join(f"{step}%" for step in rollout.steps),
        "guards": ", ".join(rollout.guards),
    }
    checks = [
        (each.guard, str(each.verdict), each.value, each.limit, f"{each.requests:,}")
        for each in state.checks
    ]
    image = "<p>No requests were counted.</p>"
    if picture is not None:
        image = (
            pages.image(picture, "Share of requests, latency, errors and agreement over time")
            + "<p>Since the beginning of each step; bands are 95% confidence intervals, valid at "
            "all times at once.</p>"
        )
    guards = pages.table(checks, ("guard", "state", "value", "limit", "requests"))
    return pages.page(title, pages.table(facts.items()) + image + guards)
