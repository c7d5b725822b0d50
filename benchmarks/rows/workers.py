"""Jobs of one to four processes: how long until they can train, and how much they then train."""

from __future__ import annotations

import tempfile

import _main_job
import main_path
from _jobs import Place
from _main_job import BATCH, step_ms
from _measure import Measured
from _rows import Found, Row

Rates = dict[str, dict[int, float]]
"""Examples per second, by side and by number of workers."""

_COUNTS = (1, 2, 4)
_MOST = _COUNTS[-1]


def workers(place: Place) -> Found:
    """The job of the main path's benchmark, by number of workers."""
    folder = place.sub("workers")
    env = {"TIMONEL_WORKSPACE": str(folder / "workspace")}
    epochs, pairs = (2, 1) if place.quick else (5, 2)
    records = _main_job.prepare(folder)
    _main_job.convert(folder)
    _main_job.convert_by_hand(folder)

    def warm(count: int) -> Measured:
        return _main_job.train_ours(folder, epochs, env, workers=count)

    def cold(count: int) -> Measured:
        # A runtime folder of its own holds no warm parent yet.
        with tempfile.TemporaryDirectory(prefix="timonel-run-") as runtime:
            alone = {"XDG_RUNTIME_DIR": runtime, "TIMONEL_WARM_LINGER": "0"}
            return _main_job.train_ours(folder, epochs, {**env, **alone}, workers=count)

    def bare(count: int) -> Measured:
        return _main_job.train_by_hand(folder, records, epochs, workers=count)

    first, by_hand = main_path.in_turn(lambda: cold(_MOST), lambda: bare(_MOST), pairs)
    warm(1)  # leaves a warm parent behind, as an earlier job of the user's would
    again, by_hand_again = main_path.in_turn(lambda: warm(_MOST), lambda: bare(_MOST), pairs)
    data: Rates = {"timonel": {}, "by hand": {}}
    for count in _COUNTS:
        mine, theirs = (again[-1], by_hand_again[-1]) if count == _MOST else (
            warm(count), bare(count)
        )  # fmt: skip
        data["timonel"][count] = 1000 * BATCH / mine.marks["step_ms"]
        data["by hand"][count] = 1000 * BATCH / step_ms(theirs.output, records // BATCH)
    return Found(
        [
            _start("after an earlier job", again, by_hand_again, most=0.33),
            _start("the first one", first, by_hand),
        ],
        [_remark(data)],
        data,
    )


def _start(when: str, ours: list[Measured], bare: list[Measured], most: float | None = None) -> Row:
    return Row(
        f"start of a job of {_MOST} processes, {when}", "s",
        [found.marks["ready"] - found.started_at for found in ours],
        [found.marks["ready"] - found.started_at for found in bare],
        f"{_MOST} bare processes", most=most,
    )  # fmt: skip


def _remark(rates: Rates) -> str:
    told = [
        f"{side} {', '.join(f'{rate:,.0f}' for rate in found.values())}"
        for side, found in rates.items()
    ]
    return (
        f"Throughput in examples/s with 1, 2 and {_MOST} workers, global batch {BATCH}: "
        f"{'; '.join(told)}. One process computes on all cores already, so more of them on one "
        "machine can only share these and pay for the exchange; this shows what that costs, not "
        "what several machines gain."
    )
