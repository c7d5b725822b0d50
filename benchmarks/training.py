"""Training against the same work by hand, side by side in one run.

A part that fails is reported as failed, with its reason; the others go on. What was found is
written down part by part, as a page and as the data of the pictures in the documentation; `--only`
measures some parts anew and leaves the others as they are.

usage: training.py [--only PART ...] [--quick] [--output benchmarks/results/training.md]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import _measure
from _jobs import Place, end_what_is_left
from _rows import Found, Row
from rows.checkpoints import checkpoints
from rows.curve import curve
from rows.kills import kills
from rows.slow_worker import slow_worker
from rows.step_time import one_process, two_workers
from rows.workers import workers

Part = Callable[[Place], Found]
Document = dict[str, Any]
"""A part of the result, as JSON holds it."""
PARTS: dict[str, Part] = {
    "one-process": one_process,
    "two-workers": two_workers,
    "slow-worker": slow_worker,
    "kills": kills,
    "checkpoints": checkpoints,
    "workers": workers,
    "curve": curve,
}
HERE = Path(__file__).parent
HEAD = """| what | timonel | against | ratio | goal | met |
|---|---|---|---|---|---|"""


def main() -> None:
    """Measure, and write and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART",
                        help=", ".join(PARTS))  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="try it out: few steps, not written")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "training.md")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # An end in order: the jobs that run are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data = options.output.with_suffix(".json")
    parts = json.loads(data.read_text())["parts"] if options.only and data.exists() else {}
    commit = _measure.commit()  # before what is written changes a file
    for name, document in measure(options.only or list(PARTS), quick=options.quick):
        parts[name] = {"commit": commit, "date": time.strftime("%Y-%m-%d"), **document}
        parts = {name: parts[name] for name in PARTS if name in parts}
        if not options.quick:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(report(parts))
            about = {"machine": _measure.machine(), "parts": parts}
            data.write_text(json.dumps(about, indent=1) + "\n")
    print(report(parts))
    sys.exit(any(part["failed"] for part in parts.values()))


def measure(names: Sequence[str], *, quick: bool) -> Iterator[tuple[str, Document]]:
    """Measure some parts; yield each with what it found, or why it found nothing."""
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as scratch:
        folder = Path(scratch)
        # Warm parents of its own, which it may end.
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        try:
            for name in names:
                yield name, _measure_part(name, Place(folder, quick))
                for used in set(folder.iterdir()) - {runtime}:
                    end_what_is_left(used)
        finally:
            end_what_is_left(folder)


def _measure_part(name: str, place: Place) -> Document:
    begun = time.monotonic()
    found, failed = Found(), None
    try:
        found = PARTS[name](place)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the others go on
        traceback.print_exc()
        failed = f"{type(error).__name__}: {error}"
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return {
        "load": round(os.getloadavg()[1], 1),
        "failed": failed,
        "rows": [row.document() for row in found.rows],
        "remarks": found.remarks,
        "data": found.data,
    }


def report(parts: Mapping[str, Document]) -> str:
    """Return what was found as a Markdown page."""
    commits: dict[str, list[str]] = {}
    for name, part in parts.items():
        commits.setdefault(f"{part['commit']} ({part['date']})", []).append(name)
    measured = "; ".join(
        f"at commit {commit}" + (f": {', '.join(names)}" if len(commits) > 1 else "")
        for commit, names in commits.items()
    )
    loads = [part["load"] for part in parts.values()]
    intro = (
        f"Measured on {_measure.machine()}, {measured}. Both sides ran in one run, most of them in "
        "turns of some steps; the ratio is the median of the ratios of the pairs, timonel's figure "
        "divided by the other. The machine was shared with others "
        f"(load {min(loads):.0f} to {max(loads):.0f}): read the ratios, not the times."
    )
    lines = ["# Training against the same work by hand", "", intro, "", HEAD]
    for name, part in parts.items():
        lines += [Row.of(row).markdown() for row in part["rows"]]
        if part["failed"]:
            lines.append(f"| {name} | **failed** | {part['failed']} | | | **no** |")
    remarks = [f"- {remark}" for part in parts.values() for remark in part["remarks"]]
    return "\n".join([*lines, "", *remarks, ""])


if __name__ == "__main__":
    main()
