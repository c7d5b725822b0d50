"""What ``runs show`` and ``jobs show`` say of the tasks' pace."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Timonel
from timonel.storage import find_workspace
from timonel.tracking import start_run
from timonel.tracking.events import append_event


def test_a_run_shows_how_fast_each_task_was_and_who_held_up_the_others(
    here: Path, timonel: Timonel
) -> None:
    with start_run(find_workspace(here / ".timonel"), "train", run_id="train-1") as run:
        for second in range(0, 10, 2):
            for task, step_ms in (("chief-0", 38.0), ("worker-0", 61.0)):
                pace = {"step_ms": step_ms, "wait_ms": 70 - step_ms, "examples_per_s": 1600.5}
                event = {"t": 100.0 + second, "type": "pace", "task": task, **pace}
                append_event(run.folder / "events.jsonl", event)
    lines = timonel("runs", "show", "train-1").out.splitlines()
    at = lines.index("Pace")
    assert [line.rstrip() for line in lines[at + 1 : at + 5]] == [
        "TASK      EXAMPLES/S  COMPUTES A STEP  THEN WAITS",
        "chief-0   1,600       38 ms            32 ms",
        "worker-0  1,600       61 ms            9.0 ms",
        "slowest: worker-0 computes 61 ms a step, the others 38 ms",
    ]
    shown = json.loads(timonel("runs", "show", "train-1", "--json").out)
    assert shown["slowest"] == "worker-0"
    assert shown["pace"][0] == {
        "task": "chief-0", "examples_per_s": 1600.5, "step_ms": 38.0, "wait_ms": 32.0,
    }  # fmt: skip


def test_a_run_of_one_task_has_no_pace(here: Path, timonel: Timonel) -> None:
    with start_run(find_workspace(here / ".timonel"), "train", run_id="train-1"):
        pass
    assert "Pace" not in timonel("runs", "show", "train-1").out
    shown = json.loads(timonel("runs", "show", "train-1", "--json").out)
    assert (shown["pace"], shown["slowest"]) == ([], None)
