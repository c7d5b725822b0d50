from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.training.display.test_view import job, metrics, pace, progress
from timonel.storage import Workspace
from timonel.tracking import read_run, start_run
from timonel.training.display.notebook import INTERVAL_S, NotebookDisplay, in_notebook


class Output:
    """An output of a cell that can be changed."""

    def __init__(self, bundle: Mapping[str, str]) -> None:
        self.shown = [bundle]

    def update(self, bundle: Mapping[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(bundle)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def outputs() -> list[Output]:
    return []


@pytest.fixture
def display(outputs: list[Output]) -> NotebookDisplay:
    def show(bundle: Mapping[str, str]) -> Output:
        outputs.append(Output(bundle))
        return outputs[-1]

    clock = Clock()
    made = NotebookDisplay("train-1", show=show, clock=clock)
    made.clock = clock  # type: ignore[attr-defined] # for the test alone
    return made


def test_one_output_changes_as_the_job_goes_on(
    display: Any, outputs: list[Output], workspace: Workspace
) -> None:
    for number, event in enumerate(
        (progress(0.0, 1, 1), pace(1.0, "chief-0", 38.0), metrics(2.0, 0, loss=0.125),
         progress(2.0, 1, 12), progress(3.0, 2, 6))
    ):  # fmt: skip
        display.clock.now = number * INTERVAL_S
        display.job(job())
        display.feed(event)
    (output,) = outputs
    display.clock.now += INTERVAL_S
    display.job(job())
    lines = output.shown[-1]["text/plain"].splitlines()
    assert lines[:2] == ["job train-1", "epoch  1/15  loss 0.125  2.0s"]
    assert lines[2].startswith("epoch 2/15  ━")
    assert lines[3].startswith("chief   running")
    assert "<pre" in output.shown[-1]["text/html"]
    assert "loss" in output.shown[-1]["text/html"]
    with start_run(workspace, "train", run_id="train-1") as run:
        run.metrics({"loss": 0.125})
    display.end(read_run(workspace, "train-1"))
    assert output.shown[-1]["text/plain"].splitlines()[-1].startswith("train-1 succeeded in 0.")
    assert "━" not in output.shown[-1]["text/plain"]


def test_what_is_shown_changes_twice_a_second_at_most(display: Any, outputs: list[Output]) -> None:
    for number in range(100):
        display.clock.now = number * INTERVAL_S / 10
        display.feed(progress(number * 0.05, 1, number))
    assert len(outputs[0].shown) == 1 + 10


def test_thousands_of_epochs_leave_a_page_that_opens(display: Any, outputs: list[Output]) -> None:
    for epoch in range(1000):
        display.feed(metrics(float(epoch), epoch, loss=0.5))
        display.feed(progress(float(epoch), epoch + 1, 12, epochs=1000))
    display.clock.now += INTERVAL_S
    display.feed(progress(1001.0, 1000, 12, epochs=1000))
    lines = outputs[0].shown[-1]["text/plain"].splitlines()
    assert lines[1] == "800 lines before"
    assert len(lines) < 210


def test_markup_in_a_message_is_shown_as_it_is(display: Any, outputs: list[Output]) -> None:
    display.feed({"t": 0.0, "type": "log", "level": "warning", "message": "<script>[bold]x"})
    assert "&lt;script&gt;[bold]x" in outputs[0].shown[-1]["text/html"]


def test_this_is_no_notebook() -> None:
    assert not in_notebook()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
def test_a_real_kernel_shows_a_job(tmp_path: Path) -> None:
    from nbclient import NotebookClient

    (tmp_path / "train.py").write_text("print('trained')\n")
    quick = "strategy='none', warm=False"
    cells = [
        f"import timonel\nrun = timonel.train('train.py', {quick})",
        f"timonel.train('train.py', {quick}, progress=False)\nprint(run.id)",
    ]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown, silent = (cell.outputs for cell in notebook.cells)
    assert [output.output_type for output in shown] == ["display_data"], json.dumps(shown)
    assert [output.output_type for output in silent] == ["stream"]
    run_id = silent[0].text.strip()
    lines = shown[0].data["text/plain"].splitlines()
    assert lines[0] == f"job {run_id}"
    assert lines[-1].startswith(f"{run_id} succeeded in ")
    assert run_id in shown[0].data["text/html"]
