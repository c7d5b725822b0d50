"""Converted models on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from timonel.cli.render.tables import pairs, table
from timonel.edge.report_page import facts_of, format_name, tensors_of
from timonel.styles import number
from timonel.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from timonel.edge import Conversion
    from timonel.edge.report import ConversionReport


def conversion_page(made: Conversion) -> RenderableType:
    """Render what a conversion wrote and how good it is."""
    report = made.report
    parts: list[RenderableType] = [
        Text(f"{report.model} as {format_name(report)}", style="bold"),
        pairs({name: text for name, text in facts_of(report) if name != "note"}),
        table(("", "TENSOR", "TYPE"), tensors_of(report)),
    ]
    parts += [Text(note) for note in report.notes]
    parts.append(Text(f"\n{made.folder}: {', '.join((*report.files, 'report.html'))}"))
    return Group(*parts)


def bench_table(results: Mapping[str, ConversionReport | str]) -> RenderableType:
    """Return a table of formats, and why some are missing."""
    rows: list[tuple[str | float | None, ...]] = []
    for name, result in results.items():
        if not isinstance(result, str):
            found = result.comparison
            if not rows:
                accuracy = found.original_accuracy
                size = format_bytes(result.original_bytes)
                share = None if accuracy is None else f"{accuracy:.1%}"
                rows.append(("original", size, share, None, None, None))
            rows.append(
                (
                    name,
                    format_bytes(result.size_bytes),
                    None if found.accuracy is None else f"{found.accuracy:.1%}",
                    None if found.agreement is None else f"{found.agreement:.1%}",
                    found.max_difference,
                    f"{number(result.timings[0].p50_ms)} ms" if result.timings else None,
                )
            )
    headers = ("FORMAT", "SIZE", "ACCURACY", "SAME LABEL", "DIFFERENCE", "LATENCY")
    missing = [
        Text(f"{name}: {result}") for name, result in results.items() if isinstance(result, str)
    ]
    remarks = [
        Text("LATENCY is LiteRT's on this machine; a page (convert --page) shows a browser's.")
    ]
    return Group(table(headers, rows), *missing, *(remarks if rows else ()))
