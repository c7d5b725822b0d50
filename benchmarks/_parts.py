"""The parts of a benchmark: measured one by one, kept as documents, and told in a page's words.

A part that fails is kept with its reason, and the others go on. What was found is written down
after each part, so that a benchmark which is stopped leaves what it had.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import _measure
from _rows import Found, Row

Document = dict[str, Any]
"""A part of the result, as JSON holds it."""
Documents = Mapping[str, Document]
HEAD = """| what | timonel | against | ratio | goal | met |
|---|---|---|---|---|---|"""


def measure_part(name: str, part: Callable[[], Found], **settings: object) -> Document:
    """Measure a part; return what it found, or why it found nothing, with its ``settings``."""
    begun = time.monotonic()
    found, failed = Found(), None
    try:
        found = part()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the others go on
        traceback.print_exc()
        failed = f"{type(error).__name__}: {error}"
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return {
        "load": round(os.getloadavg()[1], 1),
        **settings,
        "failed": failed,
        "rows": [row.document() for row in found.rows],
        "remarks": found.remarks,
        "data": found.data,
    }


def run(
    measured: Iterable[tuple[str, Document]],
    *,
    order: Iterable[str],
    report: Callable[[Documents], str],
    output: Path,
    keep: bool,
    written: bool,
    about: Mapping[str, object] | None = None,
) -> None:
    """Write what is ``measured`` part by part, print the page, and exit: 1 if a part failed.

    Args:
        measured: The parts, each measured when it is taken.
        order: The names of all parts, as the page lists them.
        report: Makes the page.
        output: Where the page is, with the data beside it.
        keep: Whether parts of an earlier run stay where they are not measured anew.
        written: Whether the page and the data are written.
        about: What the data says of the run beside the machine and the parts.
    """
    parts = _earlier(output) if keep else {}
    commit = _measure.commit()  # before what is written changes a file
    names, machine = list(order), _measure.machine()
    for name, document in measured:
        where = {"commit": commit, "date": time.strftime("%Y-%m-%d"), "machine": machine}
        parts[name] = {**where, **document}
        parts = {name: parts[name] for name in names if name in parts}
        if written:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(report(parts))
            data = {"machine": machine, **(about or {}), "parts": parts}
            _data(output).write_text(json.dumps(data, indent=1) + "\n")
    print(report(parts))
    sys.exit(any(part["failed"] for part in parts.values()))


def _earlier(output: Path) -> dict[str, Document]:
    if not _data(output).exists():
        return {}
    data = json.loads(_data(output).read_text())
    # Parts did not tell of their machine once.
    return {name: {"machine": data["machine"], **part} for name, part in data["parts"].items()}


def _data(output: Path) -> Path:
    return output.with_suffix(".json")


def table(parts: Documents) -> list[str]:
    """Return the lines of the table of all rows, a part that failed with its reason."""
    lines = [HEAD]
    for name, part in parts.items():
        lines += [Row.of(row).markdown() for row in part["rows"]]
        if part["failed"]:
            lines.append(f"| {name} | **failed**: {part['failed']} | | | | **no** |")
    return lines


def remarks(parts: Documents) -> list[str]:
    """Return what a reader must know of the rows, part by part."""
    return [remark for part in parts.values() for remark in part["remarks"]]


def measured_at(parts: Documents) -> str:
    """Say where and at which commit what was measured: "on m, at commit c (date): part; on ..."."""
    runs: dict[str, list[str]] = {}
    for name, part in parts.items():
        run = f"on {part['machine']}, at commit {part['commit']} ({part['date']})"
        runs.setdefault(run, []).append(name)
    return "; ".join(
        run + (f": {', '.join(names)}" if len(runs) > 1 else "") for run, names in runs.items()
    )


def loads(parts: Documents) -> str:
    """Say how busy the machine was: "2 to 5"."""
    found = [part["load"] for part in parts.values()]
    return f"{min(found):.0f} to {max(found):.0f}"
