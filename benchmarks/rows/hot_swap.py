"""What clients notice of a new version: p99 while versions are swapped, against p99 before."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import _load
import _sides
from _jobs import BenchmarkError
from _load import Sample, Target
from _rows import Found, Row
from _served import Models
from _sides import REST, Side
from _turns import Plan, Running

from rows.throughput import served

_WINDOW_S = 6.0
_SHARE = 0.5
"""Of what the server can answer: a server that has no processor left is slow by any means."""


def swap(models: Models, plan: Plan) -> Found:
    """Our server, at half of what it can answer, and as fast as it can."""
    found = Found()
    side = _sides.DEFAULT
    what = f"p99 during a hot swap: {side.name}"
    try:
        figures = _swaps(models, plan, side)
    except Exception as error:  # noqa: BLE001 - the others go on
        why = f"{type(error).__name__}: {error}"
        found.rows.append(Row(what, "ms", [], [], "before", most=1.5, failed=why))
        return found
    steady, full = figures["steady"], figures["full"]
    found.rows += [
        Row(f"{what}, half load", "ms", steady["during"], steady["before"], "before", most=1.5),
        Row(f"{what}, full load", "ms", full["during"], full["before"], "before"),
    ]
    found.data[f"swap: {side.name}"] = figures
    found.remarks.append(
        f"Hot swap: a new version is put there by a rename as a window of {_WINDOW_S:.0f} s or "
        "more begins; it is loaded, takes over, and the version before is unloaded. No request may "
        f"fail. Half load: {_SHARE:.0%} of the requests/s that the server was found to answer, "
        "sent at a steady rate. Swaps took " + "; ".join(_swaps_took(found.data)) + "."
    )
    return found


def _swaps(models: Models, plan: Plan, side: Side) -> dict[str, Any]:
    case = models.cases["S"]
    folder = plan.folder / f"swap-{side.name.replace(' ', '-').replace(',', '')}"
    shutil.copytree(models.folder / case.model / "1", folder / case.model / "1")
    model = replace(served(models, case), folder=folder / case.model)
    running = Running(side, model, plan)
    try:
        running.first_answer(case)
        running.prepare(case, REST)
        running.window(case, REST, 1)
        most = running.window(case, REST, plan.seconds).rate
        target, log = running.target(case, REST), plan.folder / "swap.log"

        def steady(seconds: float) -> Sample:
            rate = most * _SHARE
            return _load.rest_at_rate(target, case.concurrency, rate, seconds, log)

        def full(seconds: float) -> Sample:
            return _load.rest(target, case.concurrency, seconds)

        versions = _Versions(model.folder, target)
        return {
            "case": case.name, "rate": most,
            "steady": _compared(steady, versions, plan), "full": _compared(full, versions, plan),
        }  # fmt: skip
    finally:
        running.server.stop()


def _compared(
    load: Callable[[float], Sample], versions: _Versions, plan: Plan
) -> dict[str, list[float]]:
    before, during, took = [], [], []
    for _ in range(plan.rounds):
        seconds = max(plan.seconds, _WINDOW_S)
        before.append(load(seconds).p99_ms)
        with _InBackground(versions.add) as added:
            during.append(load(seconds).p99_ms)
        took.append(added.seconds)
    return {"before": before, "during": during, "swap_s": took}


def _swaps_took(data: dict[str, Any]) -> list[str]:
    return [
        f"{', '.join(f'{took:.1f}' for took in figures[load]['swap_s'])} s ({name[6:]}, {load})"
        for name, figures in data.items()
        for load in ("steady", "full")
    ]


class _Versions:
    """The versions of the model, and what the server says of them."""

    def __init__(self, folder: Path, target: Target) -> None:
        self._folder = folder
        self._url = target.url.removesuffix(":predict")

    def add(self) -> None:
        """Publish one more version, and wait until it is the one that answers."""
        number = 1 + max(int(path.name) for path in self._folder.iterdir() if path.name.isdigit())
        aside = self._folder.parent / "aside"
        shutil.copytree(self._folder / "1", aside)
        aside.rename(self._folder / str(number))
        deadline = time.monotonic() + 120
        while not self._answers(str(number)):
            if time.monotonic() > deadline:
                raise BenchmarkError(f"version {number} was not there after 120 s")
            time.sleep(0.1)

    def _answers(self, number: str) -> bool:
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            states = json.load(answer)["model_version_status"]
        at = {state["version"]: state["state"] for state in states}
        loaded = at.get(number) == "AVAILABLE"
        return loaded and all(at[other] == "END" for other in at if other != number)


class _InBackground:
    """Run a function beside the block, which ends when both have; ``seconds``: how long it took."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._error = error
        self.seconds = time.monotonic() - begin

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
