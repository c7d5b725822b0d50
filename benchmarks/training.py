"""Training against the same work by hand, side by side in one run.

A part that fails is reported as failed, with its reason; the others go on. What was found is
written down part by part, as a page and as the data of the pictures in the documentation; `--only`
measures some parts anew and leaves the others as they are.

usage: training.py [--only PART ...] [--quick] [--output benchmarks/results/training.md]
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import _parts
from _jobs import Place, end_what_is_left
from _parts import Document
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
    _parts.run(
        measure(options.only or list(PARTS), quick=options.quick),
        order=PARTS,
        report=report,
        output=options.output,
        keep=bool(options.only),
        written=not options.quick,
    )


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
                yield name, _parts.measure_part(name, partial(PARTS[name], Place(folder, quick)))
                for used in set(folder.iterdir()) - {runtime}:
                    end_what_is_left(used)
        finally:
            end_what_is_left(folder)


def report(parts: Mapping[str, Document]) -> str:
    """Return what was found as a Markdown page."""
    intro = (
        f"Measured {_parts.measured_at(parts)}. Both sides ran in "
        "one run, most of them in turns of some steps; the ratio is the median of the ratios of "
        "the pairs, timonel's figure divided by the other. The machine was shared with others "
        f"(load {_parts.loads(parts)}): read the ratios, not the times."
    )
    lines = ["# Training against the same work by hand", "", intro, "", *_parts.table(parts)]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in _parts.remarks(parts)), ""])


if __name__ == "__main__":
    main()
