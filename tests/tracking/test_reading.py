from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from timonel.errors import CorruptError, FormatError, NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.tracking import list_runs, open_run, read_run, start_run


@pytest.fixture
def runs(workspace: Workspace) -> Workspace:
    for kind, run_id, name in (
        ("convert", "convert-1", "digits"),
        ("train", "train-1", "base"),
        ("train", "train-12", "base"),
        ("export", "export-1", None),
    ):
        start_run(workspace, kind, run_id=run_id, name=name)
    return workspace


@pytest.mark.parametrize(
    ("ref", "kind", "found"),
    [
        ("last", None, "export-1"),
        ("last", "train", "train-12"),
        ("train-1", None, "train-1"),
        ("train-1", "train", "train-1"),
        ("base", None, "train-12"),
        ("con", None, "convert-1"),
        ("train-12", None, "train-12"),
    ],
)
def test_references(runs: Workspace, ref: str, kind: str | None, found: str) -> None:
    assert read_run(runs, ref, kind).id == found


@pytest.mark.parametrize("ref", ["nothing", "", ".", "..", "../runs/train-1"])
def test_what_fits_no_run_is_not_found(runs: Workspace, ref: str) -> None:
    with pytest.raises(NotFoundError, match="no run"):
        read_run(runs, ref)


def test_a_kind_leaves_out_the_others(runs: Workspace) -> None:
    with pytest.raises(NotFoundError, match="train run"):
        read_run(runs, "convert-1", "train")


def test_a_beginning_that_fits_several_names_them(runs: Workspace) -> None:
    with pytest.raises(SpecError, match="matches 2 runs: give a longer prefix: train-12, train-1"):
        read_run(runs, "trai")


def test_an_empty_workspace_has_no_last_run(workspace: Workspace) -> None:
    assert list_runs(workspace) == []
    with pytest.raises(NotFoundError, match="no run yet"):
        read_run(workspace)


def test_runs_are_listed_newest_first(runs: Workspace) -> None:
    ids = [record.id for record in list_runs(runs)]
    assert ids == ["export-1", "train-12", "train-1", "convert-1"]
    assert [record.id for record in list_runs(runs, "train")] == ["train-12", "train-1"]


def test_torn_and_corrupt_lines_are_skipped_and_counted(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    run.metrics({"loss": 1.0}, step=1)
    with (run.folder / "events.jsonl").open("ab") as file:
        file.write(b'not json\n[1]\n{"type": 3, "t": 1}\n\xff\xfe\n\n{"t": 1, "type": "metr')
    torn = read_run(workspace)
    assert torn.skipped_lines == 5
    assert torn.status == "running"
    run.metrics({"loss": 2.0}, step=2)
    closed = read_run(workspace)
    assert closed.skipped_lines == 5
    assert [point.value for point in closed.series["loss"]] == [1.0, 2.0]


def test_values_of_the_wrong_type_are_passed_over(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    run.event("metrics", metrics={"a": None, "b": True, "c": "word", "d": "nan", "e": 1}, step="x")
    run.event("metrics", metrics=3)
    run.event("params", params=[1])
    run.event("input", artifact={"type": "unknown", "uri": "/x"})
    run.event("output", artifact=None)
    run.event("output", artifact={"uri": "/x"})
    record = read_run(workspace)
    assert sorted(record.metrics) == ["d", "e"]
    assert record.series["e"][0].step is None
    assert record.inputs == record.outputs == ()


def test_steps_that_a_restart_repeats_count_once(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    for step in (1, 2, 3):
        run.metrics({"loss": 10.0 + step}, step=step)
    run.event("restart", generation=2)
    for step in (2, 3, 4):
        run.metrics({"loss": 20.0 + step}, step=step)
    record = read_run(workspace)
    assert [point.value for point in record.series["loss"]] == [11.0, 22.0, 23.0, 24.0]
    assert record.restarts == 1


def test_resumed_jobs_have_not_restarted(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    for generation, message in ((2, None), (3, "worker-0 was lost"), (4, None)):
        run.finish("failed")
        run.event("resume")
        run.event("restart", generation=generation, **({"message": message} if message else {}))
    assert read_run(workspace).restarts == 1
    run.event("restart", generation=5, message="worker-0 was lost")
    assert read_run(workspace).restarts == 2


def test_a_broken_record_hides_no_other(runs: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    (runs.runs / "train-1" / "run.json").write_text("{")
    (runs.runs / "stray").mkdir()
    assert [record.id for record in list_runs(runs)] == ["export-1", "train-12", "convert-1"]
    assert "train-1" in caplog.text
    with pytest.raises(CorruptError, match="is not valid JSON"):
        read_run(runs, "train-1")


def test_a_run_of_another_kind_is_said_to_be_one(runs: Workspace) -> None:
    with pytest.raises(NotFoundError, match="convert-1 is a convert run, not a"):
        read_run(runs, "convert-1", "train")


def test_a_newer_record_that_is_named_is_not_called_unknown(runs: Workspace) -> None:
    path = runs.runs / "train-1" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(FormatError, match="has run format 99"):
        read_run(runs, "train-1", "train")


def test_a_record_of_a_newer_format_is_refused(runs: Workspace) -> None:
    path = runs.runs / "train-1" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(FormatError, match="upgrade timonel"):
        read_run(runs, "train-1")


def test_a_record_without_its_fields_is_corrupt(runs: Workspace) -> None:
    (runs.runs / "train-1" / "run.json").write_text('{"kind": "run", "format": 1}')
    with pytest.raises(CorruptError, match="is not a valid run record"):
        read_run(runs, "train-1")


def test_fields_of_a_later_release_are_passed_over(runs: Workspace) -> None:
    path = runs.runs / "train-1" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))
    open_run(runs, "train-1").event("unheard-of", x=1)
    assert read_run(runs, "train-1").status == "running"


def _start_and_die(root: Path, job_id: str | None) -> None:
    start_run(Workspace(root), "convert", run_id=f"convert-{job_id or 'alone'}", job_id=job_id)


@pytest.mark.parametrize(("job_id", "status"), [(None, "lost"), ("job", "running")])
def test_a_run_whose_process_is_gone_is_lost_unless_a_job_does_it(
    workspace: Workspace, job_id: str | None, status: str
) -> None:
    child = multiprocessing.get_context("fork").Process(
        target=_start_and_die, args=(workspace.root, job_id)
    )
    child.start()
    child.join()
    record = read_run(workspace)
    assert record.status == status
    assert record.is_finished == (status == "lost")
