"""The thread that keeps a job's folder the same in all pods."""

from __future__ import annotations

import select
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.kubernetes.shared import FOLDERS
from timonel.engines.kubernetes.files.changes import Change, Index
from timonel.engines.kubernetes.files.folder import SharedFolder
from timonel.engines.kubernetes.files.thread import FileThread
from timonel.storage.object_store import ObjectStore

DEADLINE_S = 60.0


class Files:
    """A started thread, and the changes that it has sent."""

    def __init__(self, root: Path) -> None:
        self.sent: list[Change] = []
        store = ObjectStore(f"memory://{uuid.uuid4().hex}", patience_s=0.0)
        self.root = root
        self.thread = FileThread(SharedFolder(root, FOLDERS, store, "one"), self.sent.extend)
        self.thread.start()

    def wait(self) -> None:
        """Wait until all that the thread was asked for is done."""
        done: list[bool] = []
        self.thread.then(lambda: done.append(True))
        while not done:
            assert select.select([self.thread.fileno()], [], [], DEADLINE_S)[0]
            self.thread.deliver()

    def path(self, name: str) -> Path:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        return self.root / name


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    files = Files(tmp_path / "pod")
    yield files
    files.thread.close()


def test_the_last_line_of_an_ended_task_is_sent_before_its_end(files: Files) -> None:
    files.thread.reset(Index())
    files.path("runs/one/events.jsonl").write_bytes(b"one\ntwo")
    files.thread.scan()
    files.wait()
    parts = [part.data or b"" for change in files.sent for part in change.parts or ()]
    assert b"".join(parts) == b"one\ntwo"


def test_a_refused_change_does_not_stop_the_others(files: Files) -> None:
    files.thread.reset(Index())
    names = [f"jobs/one/{'x' * 300}", "/etc/hosts", "jobs/one/a"]
    files.thread.apply([Change(name, ()) for name in names])
    files.wait()
    assert [path.name for path in (files.root / "jobs" / "one").iterdir()] == ["a"]
