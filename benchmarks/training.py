"""Training against the same work by hand, side by side in one run.

A part that fails is reported as failed, with its reason; the others go on. `--only` measures some
parts and prints them; a whole run is also written down part by part, as a page and as the data of
the pictures in the documentation.

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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import _measure
from _jobs import Place, end_what_is_left
from _rows import Found
from rows.checkpoints import checkpoints
from rows.curve import curve
from rows.kills import kills
from rows.slow_worker import slow_worker
from rows.step_time import one_process, two_workers
from rows.workers import workers

Part = Callable[[Place], Found]
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
    """Measure, print the page, and write it where all parts are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART",
                        help=", ".join(PARTS))  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="try it out: few steps, not written")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "training.md")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # An end in order: the jobs that run are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun = time.monotonic()
    commit = _measure.commit()  # before what is written changes a file
    found: dict[str, Found] = {}
    failed: dict[str, str] = {}
    for _ in measure(options.only or list(PARTS), found, failed, quick=options.quick):
        page = report(commit, found, failed, (time.monotonic() - begun) / 60)
        if not (options.only or options.quick):
            write(options.output, page, document(commit, found, failed))
    print(page)
    sys.exit(1 if failed else 0)


def write(output: Path, page: str, content: dict[str, Any]) -> None:
    """Write the page, and its data beside it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page)
    output.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


def measure(
    names: Sequence[str], found: dict[str, Found], failed: dict[str, str], *, quick: bool
) -> Iterator[str]:
    """Measure some parts; yield each when what it found, or why it found nothing, was added."""
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as name:
        folder = Path(name)
        # Warm parents of its own, which it may end.
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        try:
            for part in names:
                _measure_part(part, Place(folder, quick), found, failed)
                for used in set(folder.iterdir()) - {runtime}:
                    end_what_is_left(used)
                yield part
        finally:
            end_what_is_left(folder)


def _measure_part(part: str, place: Place, found: dict[str, Found], failed: dict[str, str]) -> None:
    begun = time.monotonic()
    try:
        found[part] = PARTS[part](place)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the others go on
        traceback.print_exc()
        failed[part] = f"{type(error).__name__}: {error}"
    print(f"{part}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def report(commit: str, found: dict[str, Found], failed: dict[str, str], minutes: float) -> str:
    """Return the result as a Markdown page."""
    intro = (
        f"Measured {time.strftime('%Y-%m-%d')} at commit {commit} on "
        f"{_measure.machine()}, in {minutes:.0f} minutes. Both sides ran in one run, most of them "
        "in turns of some steps; the ratio is the median of the ratios of the pairs, timonel's "
        "figure divided by the other. The machine is shared with others (load "
        f"{os.getloadavg()[2]:.0f} on average): read the ratios, not the times."
    )
    lines = ["# Training against the same work by hand", "", intro, "", HEAD]
    lines += [row.markdown() for part in found.values() for row in part.rows]
    lines += [f"| {part} | **failed** | {reason} | | | **no** |" for part, reason in failed.items()]
    remarks = [f"- {remark}" for part in found.values() for remark in part.remarks]
    return "\n".join([*lines, "", *remarks, ""])


def document(commit: str, found: dict[str, Found], failed: dict[str, str]) -> dict[str, Any]:
    """Return the result as JSON holds it."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "machine": _measure.machine(),
        "rows": [row.document() for part in found.values() for row in part.rows],
        "failed": failed,
        "data": {name: part.data for name, part in found.items() if part.data},
    }


if __name__ == "__main__":
    main()
