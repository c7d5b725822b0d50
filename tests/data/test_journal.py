from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.conftest import MakeImages
from tests.waiting import until
from timonel.data.conversion import convert
from timonel.data.dataset import Dataset
from timonel.data.shards import ConversionJournal
from timonel.data.sources import Entry, Raw
from timonel.data.sources.images import ImageFolderSource
from timonel.errors import AlreadyExistsError, InputError, TimonelError
from timonel.storage import Workspace
from timonel.storage.locks import LockedError, exclusive
from timonel.tracking import list_runs

SHARDS = 6
PROGRAM = """
import sys
from timonel.data import convert
convert(sys.argv[1], sys.argv[2], shards=int(sys.argv[3]), workspace=sys.argv[4])
"""

STOPPED = """
import os, signal, sys
from timonel.data import convert, destination
real = destination.install_dir
def install(*arguments, **options):
    real(*arguments, **options)
    os.kill(os.getpid(), int(sys.argv[4]))
destination.install_dir = install
convert(sys.argv[1], sys.argv[2], workspace=sys.argv[3])
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / "set"


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a dataset; the manifest without what differs in each run."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = Dataset.open(folder).manifest.model_copy(update={"run_id": None})
    return {**found, "manifest.json": manifest.model_dump_json().encode()}


def start(root: Path, out: Path, workspace: Workspace) -> subprocess.Popen[bytes]:
    arguments = [str(root), str(out), str(SHARDS), workspace.uri]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])


def kill_when_finished(process: subprocess.Popen[bytes], out: Path, shards: int) -> None:
    """Kill a conversion once it has finished some shards, or let it end."""
    finished = ConversionJournal.beside(out).root / "finished"
    try:
        until(
            lambda: (
                process.poll() is not None
                or out.exists()
                or len(list(finished.glob("*.json"))) >= shards
            )
        )
        time.sleep(random.uniform(0, 0.02))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)


def check_killed(root: Path, out: Path, workspace: Workspace, moments: list[int]) -> None:
    whole = files_of(convert(root, out.with_name("whole"), shards=SHARDS, workspace=workspace).path)
    for moment in moments:
        target = out.with_name(f"killed-{moment}")
        kill_when_finished(start(root, target, workspace), target, moment)
        if not target.exists():
            convert(root, target, shards=SHARDS, workspace=workspace)
            assert not ConversionJournal.beside(target).root.exists()
        assert files_of(target) == whole


@pytest.mark.process
def test_killed_conversions_continue_with_the_same_bytes(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    check_killed(make_images(count=150), out, workspace, [0, 2, SHARDS])


@pytest.mark.soak
def test_killed_at_twenty_moments(make_images: MakeImages, out: Path, workspace: Workspace) -> None:
    moments = [random.randrange(SHARDS + 3) for _ in range(20)]
    check_killed(make_images(count=600), out, workspace, moments)


class StoppedError(Exception):
    """A fault in the middle of a conversion."""


def stop_at(monkeypatch: pytest.MonkeyPatch, limit: int) -> list[str]:
    """Let reading fail after some records; return the keys that are read."""
    real, read = ImageFolderSource.read, []

    def counted(self: ImageFolderSource, entry: Entry) -> Raw:
        read.append(entry.key)
        if len(read) > limit:
            raise StoppedError
        return real(self, entry)

    monkeypatch.setattr(ImageFolderSource, "read", counted)
    return read


@pytest.fixture
def root(
    make_images: MakeImages, out: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Images whose conversion to ``out`` stopped after about half of the shards."""
    root = make_images(count=500)
    with monkeypatch.context() as context:
        stop_at(context, 600)
        with pytest.raises(StoppedError):
            convert(root, out, shards=40, workspace=workspace)
    assert ConversionJournal.beside(out).has_finished()
    assert not out.exists()
    return root


def test_finished_shards_are_not_read_again(
    root: Path, out: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = stop_at(monkeypatch, 10_000)
    progress: list[tuple[int, int]] = []
    continued = convert(
        root, out, shards=40, workspace=workspace, progress=lambda *seen: progress.append(seen)
    )
    assert 300 < len(read) < 900
    assert progress[-1] == (1000, 1000)
    monkeypatch.undo()
    fresh = convert(root, out.with_name("fresh"), shards=40, workspace=workspace)
    assert files_of(continued.path) == files_of(fresh.path)
    assert sorted(path.name for path in out.parent.iterdir()) == ["fresh", "set"]


@pytest.mark.parametrize("change", ["content", "option", "damage"])
def test_what_changed_is_read_again(
    root: Path, out: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    shards = 40
    if change == "content":
        image = root / "cat" / "000.png"
        stamp = image.stat().st_mtime_ns + 10**9
        os.utime(image, ns=(stamp, stamp))
    elif change == "option":
        shards = 20
    else:
        shard = min(ConversionJournal.beside(out).content.glob("train-*"))
        shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    read = stop_at(monkeypatch, 10_000)
    continued = convert(root, out, shards=shards, workspace=workspace)
    assert len(read) == 1000 if change != "damage" else 300 < len(read) < 1000
    continued.verify()
    fresh = convert(root, out.with_name("fresh"), shards=shards, workspace=workspace)
    assert files_of(continued.path) == files_of(fresh.path)


@pytest.fixture(params=[signal.SIGINT, signal.SIGKILL])
def published(
    request: pytest.FixtureRequest, make_images: MakeImages, out: Path, workspace: Workspace
) -> Path:
    """Images whose conversion to ``out`` was stopped after it published the dataset."""
    root = make_images()
    arguments = [str(root), str(out), workspace.uri, str(int(request.param))]
    assert subprocess.run([sys.executable, "-c", STOPPED, *arguments], check=False).returncode
    assert Dataset.open(out).count() == 20
    assert ConversionJournal.beside(out).has_finished()
    (run,) = list_runs(workspace)
    assert run.status in {"stopped", "lost"}
    return root


@pytest.mark.process
def test_a_conversion_that_was_stopped_after_publishing_ends(
    published: Path, out: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(out)
    read = stop_at(monkeypatch, 0)
    dataset = convert(published, out, workspace=workspace)
    assert read == []
    assert files_of(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["set"]
    (run,) = list_runs(workspace)
    assert (run.id, run.status) == (dataset.manifest.run_id, "succeeded")
    assert run.outputs[0].digest == dataset.digest
    with pytest.raises(AlreadyExistsError, match="already exists"):
        convert(published, out, workspace=workspace)


@pytest.mark.process
def test_another_conversion_after_one_that_was_stopped_after_publishing(
    published: Path, out: Path, workspace: Workspace
) -> None:
    before = files_of(out)
    with pytest.raises(AlreadyExistsError, match="already exists"):
        convert(published, out, seed=1, workspace=workspace)
    assert files_of(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["set"]
    dataset = convert(published, out, seed=1, overwrite=True, workspace=workspace)
    assert dataset.manifest.seed == 1
    dataset.verify()


def test_two_conversions_to_one_destination(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    journal = ConversionJournal.beside(out)
    journal.root.mkdir(parents=True)
    with (
        exclusive(journal.lock),
        pytest.raises(LockedError, match=r"another process converts to .*set: wait for it"),
    ):
        convert(make_images(), out, workspace=workspace)
    assert convert(make_images(name="others"), out, workspace=workspace).count() == 20


def test_names_of_journals(tmp_path: Path) -> None:
    name = "ñ" * 120
    root = ConversionJournal.beside(tmp_path / name).root
    root.mkdir()
    assert root.parent == tmp_path
    assert ConversionJournal.beside(tmp_path / "other").root != root


def test_a_journal_that_cannot_be_written(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    out.parent.write_text("a file")
    with pytest.raises(TimonelError, match=r"cannot write .*out/set: (Not|File)"):
        convert(make_images(), out, workspace=workspace)


def test_a_conversion_continues_after_a_full_disk(
    make_images: MakeImages, small_disk: Path, tmp_path: Path, workspace: Workspace
) -> None:
    root, out = make_images(count=60), small_disk / "set"
    ballast = small_disk / "ballast"
    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)
    ballast.write_bytes(bytes(1_600_000))
    with pytest.raises(InputError, match=r"cannot write .*: (No space|database or disk)") as caught:
        convert(root, out, shards=30, workspace=workspace)
    assert "\n" not in str(caught.value)
    assert not out.exists()
    ballast.unlink()
    continued = convert(root, out, shards=30, workspace=workspace)
    fresh = convert(root, tmp_path / "fresh", shards=30, workspace=workspace)
    assert files_of(continued.path) == files_of(fresh.path)
