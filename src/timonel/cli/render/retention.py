"""Render deletions: what goes, its size, and what stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from timonel.cli.render.tables import table
from timonel.units import counted, format_bytes

if TYPE_CHECKING:
    from timonel.retention import Removed


def removed_page(removed: Removed) -> RenderableType:
    """Render what a deletion removes, and what it keeps."""
    rows = [
        (
            each.noun,
            each.name,
            format_bytes(each.size_bytes),
            ", ".join(each.places) if each.stays is None else f"only its entry; {each.stays} stays",
        )
        for each in removed.deleted
    ]
    total = Text(f"{format_bytes(removed.size_bytes)} in all", style="bold")
    parts: list[RenderableType] = [table(("DELETE", "NAME", "SIZE", "PLACE"), rows, wide=3), total]
    if removed.kept:
        parts += [Text(), kept_table(removed)]
    return Group(*parts)


def subject(removed: Removed) -> str:
    """Return what a deletion removes in words, with the size."""
    first = next((f"{each.noun} {each.name}" for each in removed.deleted), "nothing")
    what = first if len(removed.deleted) < 2 else counted(len(removed.deleted), "item")
    return f"{what}, {format_bytes(removed.size_bytes)}" if removed.size_bytes else what


def kept_table(removed: Removed) -> Table:
    """Render what stays, with the reasons."""
    rows = [(*key, reason) for key, reason in removed.kept.items()]
    return table(("KEEP", "NAME", "REASON"), rows, wide=2)


def removed_json(removed: Removed) -> dict[str, Any]:
    """Return a deletion as JSON."""
    return {
        "done": removed.done,
        "size_bytes": removed.size_bytes,
        "deleted": removed.deleted,
        "kept": [
            {"noun": noun, "name": name, "reason": reason}
            for (noun, name), reason in removed.kept.items()
        ],
    }
