"""Rollouts as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from timonel.cli.render.output import clock, iso
from timonel.cli.render.tables import pairs, status, table
from timonel.endpoints.rollouts.documents import Phase, RolloutState
from timonel.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from timonel.endpoints.rollouts.counts import Counts
    from timonel.endpoints.rollouts.documents import RolloutFolder

_QUANTILES = (0.5, 0.9, 0.99)


def rollout_page(documents: RolloutFolder) -> RenderableType:
    """Return a page about a rollout: facts, guards, requests of the current step by version."""
    rollout, state = documents.rollout(), _state(documents)
    steps = [
        f"[{step}]" if index == state.step and state.ended_at is None else str(step)
        for index, step in enumerate(rollout.steps)
    ]
    facts = {
        "rollout": f"{documents.number}, from version {rollout.base} to {rollout.to}",
        "state": status(state.phase),
        "reason": state.message or "it begins",
        "traffic": f"{state.percent}% to version {rollout.to}",
        "steps": f"{', '.join(steps)}%, {format_seconds(rollout.interval_s)} each or longer",
        "started": clock(rollout.created_at),
        "ended": clock(state.ended_at),
    }
    parts: list[RenderableType] = [pairs(facts)]
    if state.checks:
        rows = [
            (each.guard, state.verdict(each), each.value, each.limit,
             each.requests)
            for each in state.checks
        ]  # fmt: skip
        heads = ("GUARD", "STATE", "VALUE", "LIMIT", "REQUESTS")
        parts += [Text(), table(heads, rows)]
    if state.counts:
        versions = [
            (version, found.requests, found.errors, found.rejections,
             *(_milliseconds(found, share) for share in _QUANTILES))
            for version, found in sorted(state.counts.items())
        ]  # fmt: skip
        columns = ("VERSION", "REQUESTS", "ERRORS", "REJECTED", "P50", "P90", "P99")
        parts += [Text(), table(columns, versions)]
    return Group(*parts)


def rollout_json(documents: RolloutFolder) -> dict[str, Any]:
    """Return a rollout as JSON."""
    rollout, state = documents.rollout(), _state(documents)
    return {
        "rollout": documents.number,
        "to": rollout.to,
        "base": rollout.base,
        "state": state.phase.replace(" ", "_"),
        "message": state.message,
        "percent": state.percent,
        "steps": list(rollout.steps),
        "interval_s": rollout.interval_s,
        "guards": [
            {**each.model_dump(mode="json"), "verdict": state.verdict(each)}
            for each in state.checks
        ],
        "versions": {
            str(version): {
                "requests": found.requests,
                "errors": found.errors,
                "rejections": found.rejections,
                "pairs": found.pairs,
                "agreements": found.agreements,
                **{
                    f"p{share * 100:g}_ms": round(found.quantile_ms(share), 3)
                    if found.timed
                    else None
                    for share in _QUANTILES
                },
            }
            for version, found in sorted(state.counts.items())
        },
        "started_at": iso(rollout.created_at),
        "ended_at": iso(state.ended_at),
    }


def _state(documents: RolloutFolder) -> RolloutState:
    return documents.state() or RolloutState(phase=Phase.RUNNING)


def _milliseconds(counts: Counts, share: float) -> str | None:
    return f"{counts.quantile_ms(share):.4g} ms" if counts.timed else None
