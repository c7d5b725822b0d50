"""Rollouts as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from timonel.cli.render.output import clock, iso
from timonel.cli.render.tables import pairs, status, table
from timonel.endpoints.rollouts.documents import Phase, RolloutState
from timonel.endpoints.spec import format_shares
from timonel.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from timonel.endpoints.rollouts.counts import Counts
    from timonel.endpoints.rollouts.documents import Rollout, RolloutFolder

_QUANTILES = (0.5, 0.9, 0.99)


def rollout_page(documents: RolloutFolder, percent: Mapping[int, int]) -> RenderableType:
    """Return a page about a rollout: facts, guards, requests of the current step by version.

    Args:
        percent: Percentage of the endpoint's requests by version now.
    """
    rollout, state = documents.rollout(), _state(documents)
    pending = _pending(rollout, state)
    steps = [
        f"[{step}]" if index == state.step and state.ended_at is None else str(step)
        for index, step in enumerate(rollout.steps)
    ]
    facts = {
        "rollout": f"{documents.number}, from version {rollout.base} to {rollout.to}",
        "state": status(state.phase),
        "reason": state.message or "it begins",
        "command": f"{pending}, not carried out yet" if pending else None,
        "traffic": format_shares(percent) or None,
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


def rollout_json(documents: RolloutFolder, percent: Mapping[int, int]) -> dict[str, Any]:
    """Return a rollout as JSON; ``percent`` as for `rollout_page`."""
    rollout, state = documents.rollout(), _state(documents)
    return {
        "rollout": documents.number,
        "to": rollout.to,
        "base": rollout.base,
        "state": state.phase.replace(" ", "_"),
        "message": state.message,
        "command": _pending(rollout, state),
        "percent": state.percent,
        "traffic": {str(version): share for version, share in sorted(percent.items())},
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


def _pending(rollout: Rollout, state: RolloutState) -> str | None:
    """Return the last command if the control plane has not carried it out yet."""
    is_pending = rollout.commanded_at > state.commanded_at and state.ended_at is None
    return rollout.command.value if is_pending else None


def _milliseconds(counts: Counts, share: float) -> str | None:
    return f"{counts.quantile_ms(share):.4g} ms" if counts.timed else None
