"""Real jobs of every kind of program, without TensorFlow, which saves seconds."""

from __future__ import annotations

import functools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import SCRIPTS, BareEngine, log_of
from timonel.errors import SpecError, UserCodeError
from timonel.storage import Workspace
from timonel.training import Run, context, train

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture
def start(jobs_workspace: Workspace, engine: BareEngine) -> Any:
    return functools.partial(
        train, workspace=jobs_workspace, on=engine, strategy="none", warm=False
    )


def test_a_script_that_takes_its_cluster_as_flags(start: Any) -> None:
    flags = ("ps_hosts", "worker_hosts", "job_name", "task_index")
    run: Run = start(
        SCRIPTS / "old.py",
        workers=2,
        ps=1,
        pass_job_dir=True,
        args=[f"--{flag}={{{flag}}}" for flag in flags],
    )
    folder = run.workspace.jobs / run.id
    found = {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in ("worker-0", "worker-1", "ps-0")
    }
    for name, task in found.items():
        assert f"{task['job_name']}-{task['task_index']}" == name
        cluster = task["tf_config"]["cluster"]
        assert task["ps_hosts"] == cluster["ps"]
        assert task["worker_hosts"] == [*cluster["chief"], *cluster["worker"]]
    assert found["worker-0"]["tf_config"]["task"] == {"type": "chief", "index": 0}
    assert {task.role: task.state for task in run.job.status().tasks}["ps"] == "stopped"


def test_an_evaluator_is_told_of_the_others_and_they_not_of_it(start: Any, tmp_path: Path) -> None:
    script = tmp_path / "who.py"
    script.write_text(
        "import os\n"
        "from timonel.training import context\n"
        "job = context()\n"
        "(job.job_dir / f'{job.cluster.task_id}.json').write_text(os.environ['TF_CONFIG'])\n"
    )
    run: Run = start(script, workers=2, evaluator=True)
    told = {
        path.stem: json.loads(path.read_text())
        for path in (run.workspace.jobs / run.id).glob("*-0.json")
    }
    assert told.keys() == {"chief-0", "worker-0", "evaluator-0"}
    assert told["evaluator-0"]["task"] == {"type": "evaluator", "index": 0}
    assert all(task["cluster"].keys() == {"chief", "worker"} for task in told.values())
    assert run.record.status == "succeeded"


def test_a_notebook(start: Any, tmp_path: Path) -> None:
    place = tmp_path / "train.ipynb"
    cells = [
        "!pip install nothing\nimport os",
        "print('in', os.getcwd())\nraise ValueError('mine')",
    ]
    content = [{"cell_type": "code", "source": text} for text in cells]
    place.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": content}))
    with pytest.raises(UserCodeError) as caught:
        start(place)
    assert str(caught.value).splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{place}, cell 2", line 2, in <module>',
        "    raise ValueError('mine')",
        "ValueError: mine",
    ]


def test_a_module(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "beside.py").write_text("value = 3\n")
    (tmp_path / "mine" / "train.py").write_text(
        "import sys\nfrom .beside import value\nprint('value', value, sys.argv[1:])\n"
    )
    run = start("mine.train", params={"lr": 0.1})
    assert "value 3 ['--lr=0.1']" in log_of(run)


def doubled(x: int, job_dir: str) -> dict[str, Any]:
    return {"x": 2 * x, "in_job": job_dir == str(context().job_dir)}


def test_functions(start: Any) -> None:
    assert start(doubled, params={"x": 2}, pass_job_dir=True).result == {"x": 4, "in_job": True}

    factor = 3

    def scaled(values: tuple[int, ...]) -> list[int]:
        return [value * factor for value in values]

    assert start(scaled, params={"values": (1, 2)}).result == [3, 6]

    lock = threading.Lock()
    with pytest.raises(SpecError, match="refers to 'lock'"):
        start(lambda: lock)
