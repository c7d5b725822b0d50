"""Requests answered each second: our servers, the peers', and what none can pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import _dialects
import _sides
from _rows import Found, Row
from _served import Case, Models
from _sides import GRPC, REST, Model, Side
from _turns import Plan, Results, Table, best

_HEAVY = frozenset({"mobile", "resnet", "jpeg"})
Rows = Callable[[Case, str, Results], list[Row]]


def small(models: Models, plan: Plan) -> Found:
    """S and B: our servers against the peers'."""
    ours = [_sides.DEFAULT, _sides.MODEL_SERVER]
    sides = [*ours, *_peers(plan, heavy=False)]
    return _measured(models, plan, ["S", "B"], sides, _small_rows)


def mobile(models: Models, plan: Plan) -> Found:
    """M: our servers against the peers' over REST, and against computing alone over gRPC."""
    ours = [_sides.DEFAULT, _sides.LITERT, _sides.MODEL_SERVER]
    sides = [*ours, *_peers(plan, heavy=True)]
    return _measured(models, plan, ["M"], sides, _mobile_rows)


def resnet(models: Models, plan: Plan) -> Found:
    """R over gRPC: our servers against computing alone."""
    sides = [_sides.DEFAULT, _sides.LITERT]
    # A second holds a dozen answers, which come eight at a time.
    plan = replace(plan, seconds=2 * plan.seconds)
    found = _measured(models, plan, ["R"], sides, _resnet_rows, ways=[GRPC])
    found.remarks.append(f"R: windows of {plan.seconds:g} s.")
    return found


def jpeg(models: Models, plan: Plan) -> Found:
    """M as JPEG bytes: our servers against decoding and computing alone."""
    sides = [_sides.DEFAULT, _sides.MODEL_SERVER]
    return _measured(models, plan, ["J"], sides, _jpeg_rows)


def served(models: Models, case: Case) -> Model:
    """Return the model of a case as sides want it."""
    row = case.x.shape[1:]
    return Model(case.model, models.folder / case.model, row, case.model in _HEAVY)


def _peers(plan: Plan, *, heavy: bool) -> list[Side]:
    return [side for side in _sides.peers(heavy=heavy) if side.peer in plan.peers]


def _measured(
    models: Models,
    plan: Plan,
    names: Sequence[str],
    sides: Sequence[Side],
    rows: Rows,
    ways: Sequence[str] = (REST, GRPC),
) -> Found:
    cases = [models.cases[name] for name in names]
    found = Found()
    with Table(served(models, cases[0]), plan) as table:
        table.seat(sides, cases[0])
        for case in cases:
            measured = table.measure(case, ways, _bounds(models, case, plan))
            for way, results in zip(ways, measured, strict=True):
                found.data[f"{case.name} over {way}"] = _document(case, results)
                found.rows += rows(case, way, results)
    return found


def _bounds(models: Models, case: Case, plan: Plan) -> list[Side]:
    example = models.folder / f"{case.name}.npz"
    computing = [_sides.in_process("tensorflow", example)]
    if not case.is_bytes:
        computing.append(_sides.in_process("litert", example))
    answers = {way: plan.folder / f"{case.name}-{way}-answer" for way in (REST, GRPC)}
    # The sizes of answers matter to an echo, not their form.
    answers[REST].write_text(json.dumps({"predictions": case.y.tolist()}))
    answers[GRPC].write_bytes(_dialects.grpc_v1_answer(case))
    return [*computing, _sides.echo(answers)]


def _document(case: Case, results: Results) -> dict[str, Any]:
    return {
        "what": case.what,
        "concurrency": case.concurrency,
        "sides": {side.name: {"kind": _kind(side), **result.document()}
                  for side, result in results.items()},
    }  # fmt: skip


def _kind(side: Side) -> str:
    return "bound" if side.is_bound else side.peer or "timonel"


@dataclass(frozen=True)
class _Against:
    """How a row is made: one of our sides against the fastest of those that fit."""

    case: Case
    way: str
    results: Results

    def row(self, ours: Side, fits: Callable[[Side], bool], least: float) -> list[Row]:
        """Return the row; a failed one if either side has no figure."""
        rival = best(self.results, fits)
        what = f"{self.case.name}, {self.way}: {ours.name}"
        mine = self.results[ours]
        if mine.failed or rival is None:
            return [Row(what, "/s", [], [], rival.name if rival else "nothing to compare with",
                        least=least, failed=mine.failed or "no other side answered")]  # fmt: skip
        against = self.results[rival]
        return [Row(what, "/s", mine.rates, against.rates, rival.name, least=least)]

    def p99(self, ours: Side, fits: Callable[[Side], bool]) -> list[Row]:
        """Return the row of the slowest answers."""
        rival = best(self.results, fits)
        mine = self.results[ours]
        if mine.failed or rival is None:
            return []  # the row of the throughput says why
        return [
            Row(f"{self.case.name}, {self.way}: {ours.name}, p99", "ms",
                [sample.p99_ms for sample in mine.samples],
                [sample.p99_ms for sample in self.results[rival].samples],
                rival.name, most=1.0)
        ]  # fmt: skip


def _peer_with(processes: int) -> Callable[[Side], bool]:
    return lambda side: side.peer is not None and (side.processes or 0) <= processes


def _computing(side: Side) -> bool:
    return side.is_bound and side.runtime == "tensorflow" and side.name != "echo"


def _small_rows(case: Case, way: str, results: Results) -> list[Row]:
    against = _Against(case, way, results)
    fits = _peer_with(1)
    rows = [*against.row(_sides.DEFAULT, fits, least=2.0)]
    if case.name == "S":
        rows += against.p99(_sides.DEFAULT, fits)
    return rows


def _mobile_rows(case: Case, way: str, results: Results) -> list[Row]:
    against = _Against(case, way, results)
    if way == REST:
        return [row for ours in (_sides.DEFAULT, _sides.LITERT)
                for row in against.row(ours, _peer_with(2), least=2.5)]  # fmt: skip
    return _against_computing(against, 0.9, 1.6)


def _resnet_rows(case: Case, way: str, results: Results) -> list[Row]:
    return _against_computing(_Against(case, way, results), 0.95, 1.1)


def _against_computing(against: _Against, tensorflow: float, litert: float) -> list[Row]:
    goals = {_sides.DEFAULT: tensorflow, _sides.LITERT: litert}
    return [row for ours, goal in goals.items() for row in against.row(ours, _computing, goal)]


def _jpeg_rows(case: Case, way: str, results: Results) -> list[Row]:
    against = _Against(case, way, results)
    return list(against.row(_sides.DEFAULT, _computing, 0.9))
