"""Render simulations of endpoints as text and JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from timonel.cli.render.tables import pairs, table
from timonel.styles import number
from timonel.units import format_seconds

if TYPE_CHECKING:
    from timonel.endpoints.autoscaling.simulation import Simulation

_LAST = 12


def simulation_facts(simulation: Simulation) -> dict[str, str]:
    """Return the figures of a simulation by name."""
    found = simulation.summary()
    latencies = [found[f"latency_p{quantile}_s"] for quantile in (50, 95, 99)]
    facts = {
        "duration": format_seconds(found["duration_s"]),
        "requests": f"{found['requests']:,}",
        "replica-hours": number(found["replica_hours"]),
        "replicas": f"{number(found['mean_replicas'])} on average, at most {found['max_replicas']}",
        "cold starts": str(found["cold_starts"]),
        "panics": str(found["panics"]),
        "time over target": format_seconds(found["over_target_s"]),
        "latency": "-"
        if math.isnan(latencies[0])
        else f"p50 {latencies[0]:.3g}s, p95 {latencies[1]:.3g}s, p99 {latencies[2]:.3g}s",
    }
    if found["unserved"]:
        facts["unserved at the end"] = f"{found['unserved']:,}"
    return facts


def simulation_page(simulation: Simulation) -> RenderableType:
    """Return the figures of a simulation and its first decisions."""
    rows = [
        (
            format_seconds(at),
            decision.replicas,
            "yes" if decision.panicking else "",
            decision.reason,
        )
        for at, decision in simulation.decisions[:_LAST]
    ]
    left = len(simulation.decisions) - len(rows)
    return Group(
        pairs(simulation_facts(simulation)),
        Text(""),
        table(("TIME", "REPLICAS", "PANIC", "REASON"), rows, wide=3),
        *([Text(f"and {left:,} more decisions", style="dim")] if left > 0 else []),
    )


def simulation_json(simulation: Simulation) -> dict[str, Any]:
    """Return a simulation as JSON."""
    figures = {
        name: None if math.isnan(value) else value for name, value in simulation.summary().items()
    }
    return {
        **figures,
        "decisions": [
            {
                "time_s": at,
                "replicas": decision.replicas,
                "through_activator": decision.through_activator,
                "panicking": decision.panicking,
                "reason": decision.reason,
            }
            for at, decision in simulation.decisions
        ],
    }
