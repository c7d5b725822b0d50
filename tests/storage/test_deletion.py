from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from timonel.errors import InputError, SpecError
from timonel.storage import find_workspace
from timonel.storage.deletion import Deletion, Objects, size_of
from timonel.storage.object_store import ObjectStore

KILLED = """
import os, signal, sys
from pathlib import Path
from timonel.storage import deletion

at, calls = int(sys.argv[1]), 0

def counted(function):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

deletion.sync = counted(deletion.sync)
deletion._remove = counted(deletion._remove)
deletion.Deletion._carry_out = counted(deletion.Deletion._carry_out)
root = Path(sys.argv[2])
deletion.Deletion(root).delete([root / "runs/a", root / "jobs/a", root / "studies/s"])
"""


def fill(folder: Path, content: str = "x") -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file").write_text(content)
    (folder / "one").write_text(content)
    return folder


def test_paths_vanish_and_nothing_is_left(tmp_path: Path) -> None:
    kept = fill(tmp_path / "runs/kept")
    paths = [fill(tmp_path / "runs/a"), fill(tmp_path / "jobs/a"), tmp_path / "jobs/file"]
    paths[2].write_text("x")
    Deletion(tmp_path).delete([*paths, tmp_path / "missing", paths[0]])
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert files == {"jobs", "runs", ".deletions", ".deletions/.lock"} | {
        "runs/kept",
        "runs/kept/one",
        "runs/kept/sub",
        "runs/kept/sub/file",
    }
    assert kept.is_dir()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = fill(tmp_path / "outside")
    root = tmp_path / "workspace"
    run = fill(root / "runs/a")
    (run / "data").symlink_to(outside)
    (root / "runs/link").symlink_to(outside)
    Deletion(root).delete([run, root / "runs/link"])
    assert not run.exists()
    assert not (root / "runs/link").is_symlink()
    assert (outside / "sub/file").read_text() == "x"


def test_nothing_outside_of_the_root_is_deleted(tmp_path: Path) -> None:
    outside = fill(tmp_path / "outside/1")
    root = tmp_path / "workspace"
    root.mkdir()
    (root / "models").symlink_to(tmp_path / "outside")
    for path in (outside, root / "models/1", root / "../outside/1", root, tmp_path):
        with pytest.raises(SpecError, match="it is not deleted"):
            Deletion(root).delete([path])
    assert (outside / "one").is_file()


@pytest.mark.process
@pytest.mark.parametrize("at", range(1, 8))
def test_a_killed_deletion_is_completed_by_the_next_command(tmp_path: Path, at: int) -> None:
    root = find_workspace(tmp_path / ".timonel").root
    paths = [fill(root / name) for name in ("runs/a", "jobs/a", "studies/s")]
    other = fill(root / "runs/b")
    done = subprocess.run([sys.executable, "-c", KILLED, str(at), str(root)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert any((root / ".deletions").glob("*.json"))
    find_workspace(tmp_path / ".timonel")
    assert not any(path.exists() for path in paths)
    assert not list(root.rglob(".tmp-*"))
    assert not any((root / ".deletions").glob("*.json"))
    assert (other / "one").is_file()


def test_what_was_created_again_under_the_name_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [fill(tmp_path / "runs/a"), fill(tmp_path / "runs/b")]

    class Killed(BaseException):
        pass

    def kill(_path: Path) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("timonel.storage.deletion._remove", kill)
        with pytest.raises(Killed):
            Deletion(tmp_path).delete(paths)
    again = fill(tmp_path / "runs/a", "new")
    Deletion(tmp_path).resume()
    assert (again / "one").read_text() == "new"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a"]


def test_what_cannot_be_removed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = fill(tmp_path / "runs/a")

    def fail(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("timonel.storage.deletion.shutil.rmtree", fail)
        with pytest.raises(InputError, match=r"cannot remove .*: Permission denied"):
            Deletion(tmp_path).delete([path])
        Deletion(tmp_path).resume()
    assert "a deletion is not complete" in caplog.text
    assert not path.exists()
    Deletion(tmp_path).resume()
    assert not list((tmp_path / "runs").iterdir())


def test_objects_go_with_the_first_ones_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(f"memory://{uuid.uuid4().hex}")
    for name in ("run.json", "events/1.jsonl", "a"):
        store.write(f"runs/a/{name}", b"x")
    store.write("runs/b/run.json", b"x")
    order: list[str] = []
    delete = store._delete

    def recorded(name: str) -> None:
        order.append(name)
        delete(name)

    monkeypatch.setattr(store, "_delete", recorded)
    Deletion(tmp_path, store).delete([], [Objects("runs/a", ("run.json",), "runs/a/deleted")])
    assert order == ["runs/a/run.json", "runs/a/a", "runs/a/events/1.jsonl"]
    assert sorted(store.find()) == ["runs/a/deleted", "runs/b/run.json"]


def test_sizes_are_those_of_files_without_what_links_name(tmp_path: Path) -> None:
    folder = fill(tmp_path / "runs/a", "four")
    (folder / "link").symlink_to(tmp_path)
    assert size_of(folder) == 8
    assert size_of(folder / "one") == 4
    assert size_of(tmp_path / "missing") == 0
