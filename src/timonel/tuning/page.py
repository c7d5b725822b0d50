"""A study as a file: a PNG file of its figures, or an HTML page with its trials."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from timonel.errors import SpecError
from timonel.storage import write_bytes, write_text
from timonel.styles import number
from timonel.tuning.plots import Plots
from timonel.units import format_seconds

_ENDINGS = (".png", ".html")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2d3d; max-width: 1200px;
  margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.6em } h2 { font-size: 1.15em; margin: 0 } p { margin: 0; color: #555 }
.figures { display: grid; gap: 2em; margin: 2em 0;
  grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)) }
.wide { grid-column: 1 / -1; overflow-x: auto } figure { margin: 0; min-width: 0 }
img { width: 100% } .wide img { min-width: 680px }
.table { overflow-x: auto } table { border-collapse: collapse; font-size: 13px }
th, td { text-align: left; padding: .3em .9em .3em 0; border-bottom: 1px solid #e3e3e3;
  vertical-align: top; white-space: nowrap } td { font-variant-numeric: tabular-nums }
tr.best td { font-weight: 600 }
"""


def write_plot(path: Path, plots: Plots, facts: Mapping[str, str]) -> None:
    """Write figures to a PNG file, or to an HTML page with facts and trials."""
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise SpecError(
            f"a plot is a PNG file or an HTML page, got {str(path)!r}",
            hint="end the name with .png or .html",
        )
    if ending == ".png":
        write_bytes(path, plots.png())
    else:
        write_text(path, _page(plots, facts))


def _page(plots: Plots, facts: Mapping[str, str]) -> str:
    figures = "".join(
        f"<figure{' class=wide' if figure.wide else ''}><figcaption><h2>{escape(figure.title)}</h2>"
        f"<p>{escape(figure.caption)}</p></figcaption>"
        f'<img alt="{escape(figure.title)}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(plots.svg(figure)).decode()}"></figure>'
        for figure in plots.figures
    )
    name = escape(plots.study.study_name)
    about = "".join(_row("td", pair) for pair in facts.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title>"
        f'<meta name=viewport content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{name}</h1><table>{about}</table><div class=figures>{figures}</div>"
        f"<h2>Trials</h2><div class=table>{_trials(plots)}</div></html>\n"
    )


def _trials(plots: Plots) -> str:
    metrics = [objective.metric for objective in plots.objectives]
    space = plots.space
    names = [*(parameter.name for parameter in space.parameters), *space.fixed]
    rows = [
        _row(
            "td",
            (
                trial.number,
                trial.status,
                *(trial.values or [None] * len(metrics)),
                *(trial.params.get(name) for name in names),
                None
                if trial.ended_at is None
                else format_seconds(trial.ended_at - trial.started_at),
                trial.run_id,
                trial.reason,
            ),
            "best" if trial.number in plots.best else "",
        )
        for trial in plots.trials
    ]
    head = _row("th", ("trial", "status", *metrics, *names, "time", "run", ""))
    return f"<table>{head}{''.join(rows)}</table>"


def _row(tag: str, cells: Iterable[Any], style: str = "") -> str:
    texts = (number(cell) if isinstance(cell, float) else cell for cell in cells)
    made = "".join(f"<{tag}>{'-' if c is None else escape(str(c))}</{tag}>" for c in texts)
    return f'<tr class="{style}">{made}</tr>'
