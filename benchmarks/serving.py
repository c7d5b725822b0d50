"""Our server against others, on the same SavedModels and with the same client, in one run.

Servers of a model are all started, and then frozen but for the one under load, window by window in
turn, so that a machine whose speed drifts favours none. What a server answers is checked before it
is measured, and a window in which a request fails is no figure. A server that fails is reported
with its reason; the others go on. What was found is written down part by part; `--rows` measures
some parts anew and leaves the others as they are.

It needs wrk and h2load (Debian: apt install wrk nghttp2-client). The peers' environments are made
at need, or beforehand by `make bench-peers`.

usage: serving.py [--rows ROW ...] [--peers PEER ...] [--seconds 2] [--rounds 3] [--quick]
                  [--output benchmarks/results/serving.md]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import _cores
import _load
import _parts
import _served
import _sides
from _parts import Document
from _rows import Found, number
from _served import Models
from _turns import Plan
from rows.hot_swap import swap
from rows.server_start import start
from rows.throughput import jpeg, mobile, resnet, small

Part = Callable[[Models, Plan], Found]
PARTS: dict[str, Part] = {
    "S+B": small,
    "M": mobile,
    "R": resnet,
    "J": jpeg,
    "start": start,
    "swap": swap,
}
PEERS = ("bentoml", "mlserver", "kserve", "ray")
HERE = Path(__file__).parent
NOT_THERE = (
    "TensorFlow Serving itself is not among them: its binary comes as an image for Docker and as a "
    "package of Google's own apt repository, neither from PyPI nor from Debian. No server that "
    "computes with TensorFlow, it included, passes the bound in-process."
)


def main() -> None:
    """Measure, and write and print the page."""
    options = _parser().parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if options.setup:
        for peer in options.peers:
            _sides.ready(peer)
        return
    _load.require_tools()
    # An end in order: the servers that run are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _parts.run(
        measure(options),
        order=PARTS,
        report=report,
        output=options.output,
        keep=bool(options.rows),
        written=not options.quick,
        about={"cores": _cores.told()},
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=PARTS, default=[], metavar="ROW",
                        help=", ".join(PARTS))  # fmt: skip
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, metavar="PEER",
                        help=f"{', '.join(PEERS)}; without a name: none")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=2, help="length of a window")
    parser.add_argument("--rounds", type=int, default=3, help="windows of each server")
    parser.add_argument("--patience", type=float, default=120, metavar="SECONDS",
                        help="that a server has to give its first answer")  # fmt: skip
    parser.add_argument("--quick", action="store_true",
                        help="try it out: nothing is written")  # fmt: skip
    parser.add_argument("--setup", action="store_true", help="only make the peers' environments")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "serving.md")
    return parser


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Document]]:
    """Measure the parts that are asked for; yield each with what it found, or why nothing."""
    models = _served.models()
    for name in options.rows or PARTS:
        with tempfile.TemporaryDirectory(prefix="tb-") as folder:
            # A short name: the sockets of Ray's HAProxy are deep below, with 97 characters in all.
            runtime = Path(folder, "runtime")
            runtime.mkdir(mode=0o700)
            os.environ["XDG_RUNTIME_DIR"] = str(runtime)
            plan = Plan(
                Path(folder), options.seconds, options.rounds, options.patience,
                tuple(options.peers),
            )  # fmt: skip
            yield name, _parts.measure_part(
                name, partial(PARTS[name], models, plan),
                seconds=plan.seconds, rounds=plan.rounds,
            )  # fmt: skip


def report(parts: Mapping[str, Document]) -> str:
    """Return what was found as a Markdown page."""
    lines = ["# Serving, side by side", "", _intro(parts), "", *_parts.table(parts)]
    lines += ["", *(f"- {remark}" for remark in [*_parts.remarks(parts), NOT_THERE])]
    for part in parts.values():
        for title, table in part["data"].items():
            if "sides" in table:
                lines += ["", *_table(title, table)]
        if "start" in part["data"]:
            lines += ["", *_starts(part["data"]["start"])]
    return "\n".join([*lines, ""])


def _intro(parts: Mapping[str, Document]) -> str:
    windows = sorted({f"{part['rounds']} windows of {part['seconds']:g} s"
                      for part in parts.values()})  # fmt: skip
    return (
        f"Measured {_parts.measured_at(parts)}; {_cores.told()}. "
        f"Each server had {' or '.join(windows)} under load, in turn with the others; "
        "figures are medians, the ratio is the median of the ratios of the windows, timonel's "
        "figure divided by the other. "
        f"The machine's load was {_parts.loads(parts)}: read the ratios."
    )


def _table(title: str, table: Mapping[str, Any]) -> list[str]:
    lines = [
        f"## {title}: {table['what']}, {table['concurrency']} requests at once",
        "",
        "| | requests/s | spread | p50, ms | p99, ms |",
        "|---|---|---|---|---|",
    ]
    sides: dict[str, dict[str, Any]] = table["sides"]

    def rate(side: Mapping[str, Any]) -> float:
        return _median(side["samples"], "rate") if not side["failed"] else 0

    for name, side in sorted(sides.items(), key=lambda pair: -rate(pair[1])):
        if side["failed"]:
            why = " ".join(side["failed"].replace("|", "/").split())
            lines.append(f"| {name} | **failed**: {why} | | | |")
            continue
        samples = side["samples"]
        rates = [sample["rate"] for sample in samples]
        times = [_median(samples, name) for name in ("p50_ms", "p99_ms")]
        told = [number(time_ms) if time_ms else "" for time_ms in times]
        bold = "**" if side["kind"] == "timonel" else "_" if side["kind"] == "bound" else ""
        lines.append(
            f"| {bold}{name}{bold} | {number(rate(side))} | {number(min(rates))} to "
            f"{number(max(rates))} | {' | '.join(told)} |"
        )
    return lines


def _starts(data: Mapping[str, Any]) -> list[str]:
    lines = ["## From the start to the first answer, and memory at rest", "",
             "| | s | MiB |", "|---|---|---|"]  # fmt: skip
    for name, side in data.items():
        if side["failed"]:
            lines.append(f"| {name} | **failed**: {' '.join(side['failed'].split())} | |")
        else:
            took, mib = statistics.median(side["seconds"]), statistics.median(side["mib"])
            lines.append(f"| {name} | {took:.1f} | {mib:,.0f} |")
    return lines


def _median(samples: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median(sample[name] for sample in samples)


if __name__ == "__main__":
    main()
