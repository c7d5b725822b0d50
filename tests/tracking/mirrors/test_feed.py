from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.contracts.mirrors import MemoryMirror, MirrorContract, MirroredRun, assert_same
from timonel.errors import NotFoundError
from timonel.storage import Workspace
from timonel.tracking import Artifact, read_run, start_run
from timonel.tracking.mirrors import sync_run
from timonel.tracking.mirrors.base import subject


class TestMemoryMirror(MirrorContract):
    @pytest.fixture(autouse=True)
    def _store(self) -> None:
        self.store: dict[str, MirroredRun] = {}

    def make(self, workspace: Workspace) -> MemoryMirror:
        return MemoryMirror(workspace, self.store)

    def mirrored(self, workspace: Workspace, run_id: str) -> list[MirroredRun]:
        return [self.store[run_id]] if run_id in self.store else []


def test_a_mirror_that_fails_is_logged_and_catches_up(workspace: Workspace) -> None:
    with start_run(workspace, "train") as run:
        mirror = MemoryMirror(workspace, {})
        run.metrics({"loss": 1.0}, step=1)
        sync_run(workspace, run.run_id, [mirror])
        mirror.fail_after = 0
        run.metrics({"loss": 0.5}, step=2)
        (fed,) = sync_run(workspace, run.run_id, [mirror])
        assert fed.error == "ConnectionError: the tracker is away"
        log = (run.folder / "mirrors" / "memory.log").read_text()
        assert "ConnectionError: the tracker is away" in log
    assert read_run(workspace).status == "succeeded"
    mirror.fail_after = None
    (fed,) = sync_run(workspace, run.run_id, [mirror])
    assert (fed.is_complete, fed.error) == (True, None)
    assert_same(mirror.store[run.run_id], read_run(workspace))


def test_a_tracker_that_was_emptied_is_given_everything_again(workspace: Workspace) -> None:
    with start_run(workspace, "train") as run:
        run.metrics({"loss": 1.0}, step=1)
    mirror = MemoryMirror(workspace, {})
    sync_run(workspace, run.run_id, [mirror])
    mirror.store.clear()
    (fed,) = sync_run(workspace, run.run_id, [mirror])
    assert fed.events == 2
    assert_same(mirror.store[run.run_id], read_run(workspace))


def _start_and_die(root: Path) -> None:
    start_run(Workspace(root), "convert", run_id="convert-1").metrics({"files": 3})


def test_a_lost_run_is_mirrored_as_one(workspace: Workspace) -> None:
    child = multiprocessing.get_context("fork").Process(
        target=_start_and_die, args=(workspace.root,)
    )
    child.start()
    child.join()
    mirror = MemoryMirror(workspace, {})
    sync_run(workspace, "convert-1", [mirror])
    (fed,) = sync_run(workspace, "convert-1", [mirror])
    assert fed.is_complete
    assert mirror.store["convert-1"].status == "lost"
    assert mirror.store["convert-1"].series == {"files": [(0, 3.0)]}


def test_an_unknown_run_is_said_so(workspace: Workspace) -> None:
    with pytest.raises(NotFoundError, match="no run train-x"):
        sync_run(workspace, "train-x", [MemoryMirror(workspace, {})])


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([], "timonel"),
        ([Artifact("source", "/code/train.py")], "train"),
        ([Artifact("files", "/raw/iris.csv"), Artifact("source", "/x.py")], "iris"),
        ([Artifact("source", "/x.py"), Artifact("dataset", "/data/v1.2")], "v1.2"),
        ([Artifact("savedmodel", "/export")], "digits"),
    ],
)
def test_what_a_run_is_about(workspace: Workspace, inputs: list[Artifact], expected: str) -> None:
    with start_run(workspace, "train", inputs=[Artifact("dataset", "/data/digits")]) as run:
        run.output(Artifact("savedmodel", "/export"))
    start_run(workspace, "export", run_id="export-1", inputs=inputs)
    assert subject(workspace, read_run(workspace, "export-1")) == expected
