"""Results of checks as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from timonel.checks import Check, Verdict

_MARKS = {
    Verdict.OK: ("ok", "green"),
    Verdict.NOTE: ("note", "cyan"),
    Verdict.WARN: ("warn", "yellow"),
    Verdict.FAIL: ("FAIL", "bold red"),
}


def check_lines(check: Check) -> Text:
    """Render a check as one line, with a hint below unless ok."""
    word, style = _MARKS[check.verdict]
    text = Text.assemble((f"  {word:<5}", style), f"{check.name:<20} ", check.found)
    if check.hint and check.verdict is not Verdict.OK:
        text.append(f"\n{'':<28}{check.hint}", style="dim")
    return text


def summary(checks: Sequence[Check]) -> Text:
    """Render the summary line: counts per verdict, and the overall result."""
    counts = {verdict: sum(c.verdict is verdict for c in checks) for verdict in Verdict}
    parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    if counts[Verdict.FAIL]:
        return Text(f"{', '.join(parts)}: fix the failed checks first", style="bold red")
    return Text(f"{', '.join(parts)}: ready", style="bold green")


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the checks as the JSON document of ``--json``."""
    failed = any(check.verdict is Verdict.FAIL for check in checks)
    return {"ready": not failed, "checks": [asdict(check) for check in checks]}
