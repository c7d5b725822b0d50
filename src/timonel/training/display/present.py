"""One-line progress display of a running ``fit`` call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from timonel.styles import number
from timonel.units import format_seconds

_BAR_WIDTH = 24
_BAR_LEAST = 6
_LATER = ("bar", "rate", "eta", "loss")
"""Parts dropped from a line that is too long, in this order.

Epoch and step always stay. Metrics take the remaining room.
"""


def present_line(now: Mapping[str, Any], width: int, *, bar: bool = True) -> Text:
    """Return a line with the progress and speed of training.

    Args:
        now: A progress event.
        width: Maximum columns; epoch and step are shown even if they exceed it.
        bar: Draw a progress bar.
    """
    parts = _parts(now, bar=bar)
    for name in _LATER:
        if _length(parts) <= width:
            break
        parts.pop(name, None)
    _add_metrics(parts, now.get("metrics") or {}, width)
    if "bar" in parts:
        room = min(_BAR_WIDTH, _BAR_LEAST + width - _length(parts))
        parts["bar"] = _bar(now.get("step", 0), now.get("steps"), room)
    return Text("  ").join(filter(None, parts.values()))


def _parts(now: Mapping[str, Any], *, bar: bool) -> dict[str, Text]:
    step, steps, left = now.get("step", 0), now.get("steps"), now.get("eta_s")
    rate, loss = now.get("examples_per_s"), now.get("loss")
    parts = {
        "epoch": Text.assemble(("epoch ", "dim"), _of(now.get("epoch"), now.get("epochs"))),
        "bar": _bar(step, steps, _BAR_LEAST) if bar and steps else None,
        "step": Text.assemble(("step ", "dim"), _of(step, steps)),
        "loss": _named("loss", loss) if loss is not None else None,
        "metrics": Text(),
        "rate": Text(f"{rate:,.0f} examples/s") if rate is not None else None,
        "eta": Text(f"{format_seconds(left)} left") if left is not None else None,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _add_metrics(parts: dict[str, Text], metrics: Mapping[str, Any], width: int) -> None:
    """Add as many metrics as fit."""
    found: list[Text] = []
    for name, value in metrics.items():
        more = [*found, _named(name, value)]
        if _length(parts) + sum(2 + part.cell_len for part in more) > width:
            break
        found = more
    if found:
        parts["metrics"] = Text("  ").join(found)


def _length(parts: Mapping[str, Text]) -> int:
    shown = [part.cell_len for part in parts.values() if part]
    return sum(shown) + 2 * (len(shown) - 1)


def _bar(step: int, steps: int | None, width: int) -> Text:
    share = min(1.0, step / steps) if steps else 0.0
    full = math.floor(share * width)
    return Text.assemble(("━" * full, "green"), ("━" * (width - full), "bright_black"))


def _named(name: str, value: Any) -> Text:
    shown = number(value) if isinstance(value, int | float) else str(value)
    return Text.assemble((f"{name} ", "dim"), shown)


def _of(part: object, whole: object) -> str:
    return f"{part}/{whole}" if whole is not None else f"{part}"
