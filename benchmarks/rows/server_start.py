"""From a server's start to its first answer, and its memory when it then rests: model S."""

from __future__ import annotations

import statistics
import sys
import time

import _sides
from _rows import Found, Row
from _served import Models
from _sides import Side
from _turns import Plan, Running

from rows.throughput import served

_REST_S = 3.0


def start(models: Models, plan: Plan) -> Found:
    """Our servers against the best of the peers, each in turn and alone on the machine."""
    ours = [_sides.DEFAULT, _sides.MODEL_SERVER]
    peers = [side for side in _sides.peers(heavy=True)
             if side.peer in plan.peers and side.processes == 1]  # fmt: skip
    seconds: dict[Side, list[float]] = {side: [] for side in [*ours, *peers]}
    memory: dict[Side, list[float]] = {side: [] for side in [*ours, *peers]}
    failed: dict[Side, str] = {}
    # The first start of each reads its files from the disk, and is not counted.
    for turn in range(plan.rounds + 1):
        for side in [*ours, *peers]:
            if side in failed:
                continue
            try:
                took, mib = _start(models, plan, side)
            except Exception as error:  # noqa: BLE001 - the others go on
                failed[side] = f"{type(error).__name__}: {error}"
                print(f"{side.name} failed: {error}", file=sys.stderr, flush=True)
                continue
            if turn:
                seconds[side].append(took)
                memory[side].append(mib)
    rows = []
    for what, unit, figures in (
        ("start to first answer", "s", seconds), ("memory at rest", "MiB", memory)
    ):  # fmt: skip
        there = [side for side in peers if side not in failed]
        rival = min(there, key=lambda side: statistics.median(figures[side]), default=None)
        for side in ours:
            why = failed.get(side) or (None if rival else "no peer answered")
            name = rival.name if rival else "none"
            against = figures[rival] if rival and not why else []
            mine = [] if why else figures[side]
            goal = None if side is _sides.MODEL_SERVER else 1.0
            rows.append(
                Row(f"{what}: {side.name}", unit, mine, against, name, most=goal, failed=why)
            )
    data = {side.name: {"seconds": seconds[side], "mib": memory[side], "failed": failed.get(side)}
            for side in seconds}  # fmt: skip
    return Found(rows, [], {"start": data})


def _start(models: Models, plan: Plan, side: Side) -> tuple[float, float]:
    case = models.cases["S"]
    running = Running(side, served(models, case), plan)
    try:
        took = running.first_answer(case)
        time.sleep(_REST_S)
        return took, running.server.memory_mib()
    finally:
        running.server.stop()
