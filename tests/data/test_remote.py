"""Datasets in buckets."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.storage.faulty import FaultyServer
from timonel.data import Dataset, convert
from timonel.data import remote as data_remote
from timonel.data.sources import Entry, Raw
from timonel.data.sources.images import ImageFolderSource
from timonel.errors import AlreadyExistsError, CorruptError, InputError, NotFoundError, TimonelError
from timonel.storage import Workspace, remote
from timonel.storage.object_store import ObjectStore
from timonel.tracking import read_run

Server = tuple[str, FaultyServer]


@pytest.fixture
def local(tmp_path: Path, workspace: Workspace) -> Dataset:
    for label in ("cat", "dog"):
        (tmp_path / "raw" / label).mkdir(parents=True)
        for number in range(10):
            pixels = np.full((4, 4, 3), number + 10 * (label == "dog"), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "raw" / label / f"{number}.png")
    return convert(tmp_path / "raw", tmp_path / "pets", workspace=workspace, shards=3)


@pytest.fixture
def uri(
    faulty: Server, local: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remote.publish(local.path, f"{faulty[0]}/pets")
    faulty[1].downloads.clear()
    yield f"{faulty[0]}/pets"
    forget()


def forget() -> None:
    """Release what this process holds, as its end would."""
    for lease in data_remote._leases.values():
        lease.release()
    data_remote._leases.clear()


def test_a_dataset_in_a_bucket_is_the_same_and_downloaded_once(
    faulty: Server, uri: str, local: Dataset
) -> None:
    for _ in range(3):
        found = Dataset.open(f"{uri}/")
        found.check_sizes()
        assert list(found.payloads("train")) == list(local.payloads("train"))
        forget()
    assert (found.uri, found.artifact().uri) == (uri, uri)
    assert (found.artifact().name, found.digest) == ("pets", local.digest)
    counts = {p.rpartition("/")[2]: n for p, n in faulty[1].downloads.items()}
    assert counts.pop("manifest.json") == 3
    assert set(counts.values()) == {1}


def test_a_dataset_is_converted_to_a_bucket(
    faulty: Server, uri: str, local: Dataset, tmp_path: Path, workspace: Workspace
) -> None:
    made = convert(tmp_path / "raw", f"{faulty[0]}/made", workspace=workspace, shards=3)
    made.verify()
    assert (made.uri, made.digest) == (f"{faulty[0]}/made", local.digest)
    downloads = {path for path in faulty[1].downloads if "/made/" in path}
    assert {path.rpartition("/")[2] for path in downloads} == {"manifest.json"}
    run = read_run(workspace)
    assert (run.name, run.outputs[0].uri) == ("made", made.uri)
    with pytest.raises(AlreadyExistsError, match="made already exists: choose another"):
        convert(tmp_path / "raw", made.uri, workspace=workspace)
    again = convert(tmp_path / "raw", made.uri, workspace=workspace, seed=3, overwrite=True)
    assert again.digest != made.digest
    assert Dataset.open(made.uri).digest == again.digest


@pytest.mark.slow
def test_an_interrupted_conversion_to_a_bucket_is_invisible(
    faulty: Server, local: Dataset, uri: str, tmp_path: Path, workspace: Workspace
) -> None:
    place = f"{faulty[0]}/made"
    writes = iter([None] * 2)
    faulty[1].fault = lambda method, *_: next(writes, "away") if method == "PUT" else None
    with pytest.raises(InputError, match="the server does not answer"):
        convert(tmp_path / "raw", place, workspace=workspace, shards=3)
    faulty[1].fault = lambda *_: None
    with pytest.raises(NotFoundError, match="no dataset at"):
        Dataset.open(place)
    convert(tmp_path / "raw", place, workspace=workspace, shards=3).verify()


def test_processes_wait_for_the_one_that_downloads(faulty: Server, uri: str) -> None:
    barrier = threading.Barrier(3)

    def open_() -> str:
        barrier.wait()
        return Dataset.open(uri).digest

    with ThreadPoolExecutor(3) as pool:
        digests = {done.result() for done in [pool.submit(open_) for _ in range(3)]}
    assert len(digests) == 1
    shards = [n for path, n in faulty[1].downloads.items() if "manifest" not in path]
    assert set(shards) == {1}


def test_a_dataset_replaced_in_the_bucket_is_another_one(
    uri: str, local: Dataset, tmp_path: Path, workspace: Workspace
) -> None:
    first = Dataset.open(uri)
    other = convert(
        tmp_path / "raw", tmp_path / "pets", workspace=workspace, seed=7, overwrite=True
    )
    remote.publish(other.path, uri, replace=True)
    assert Dataset.open(uri).digest == other.digest != first.digest
    first.verify()


def test_shards_left_of_another_dataset_are_not_used(uri: str, tmp_path: Path) -> None:
    part = Dataset.open(uri).path.parents[2] / "part-dataset" / "content"
    (name, *_) = (path.name for path in Dataset.open(uri).shards("train"))
    forget()
    shutil.rmtree(tmp_path / "cache")
    part.mkdir(parents=True)
    (part / name).write_bytes(b"of another dataset")
    Dataset.open(uri).verify()


def test_damage_in_the_cache_is_repaired(faulty: Server, uri: str) -> None:
    found = Dataset.open(uri)
    forget()
    shard = found.shards("train")[0]
    shard.write_bytes(shard.read_bytes()[:-1])
    Dataset.open(uri).verify()


def test_damage_in_the_bucket_is_refused(uri: str, local: Dataset, tmp_path: Path) -> None:
    store = ObjectStore(uri)
    name = local.shards("train")[0].name
    good = store.read(name)
    store.write(name, bytes([good[0] ^ 1]) + good[1:])
    with pytest.raises(CorruptError, match=rf"{name} has digest"):
        Dataset.open(uri)
    store.delete([name])
    with pytest.raises(CorruptError, match=f"pets has no {name}: copy the dataset there again"):
        Dataset.open(uri)
    store.write(name, good)
    Dataset.open(uri).verify()


def test_an_interrupted_download_goes_on(
    faulty: Server, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStore.__init__, "__kwdefaults__", {"patience_s": 0.1})
    asked = []

    def fault(method: str, path: str, *_: str) -> str | None:
        if "tfrecord" in path:
            asked.append(path)
        return "away" if len(asked) > 2 else None

    faulty[1].fault = fault
    with pytest.raises(InputError, match="the server does not answer"):
        Dataset.open(uri)
    faulty[1].fault = lambda *_: None
    Dataset.open(uri).verify()
    assert max(n for path, n in faulty[1].downloads.items() if "tfrecord" in path) == 1


def test_a_full_disk_of_the_cache_is_named(
    uri: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    (small_disk / "other").write_bytes(bytes(60_000))
    with pytest.raises(TimonelError, match=r"has no room for|No space left on device") as caught:
        Dataset.open(uri)
    assert str(small_disk) in caught.value.message
    assert caught.value.hint is not None


def test_no_dataset_there_is_said_so(faulty: Server, uri: str) -> None:
    with pytest.raises(NotFoundError, match=r"no dataset at .*/none: it has no manifest.json"):
        Dataset.open(f"{faulty[0]}/none")


def test_a_stopped_conversion_to_a_bucket_continues(
    uri: str, tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, read, limit = uri.replace("pets", "made"), [], 12
    real = ImageFolderSource.read

    def counted(self: ImageFolderSource, entry: Entry) -> Raw:
        read.append(entry.key)
        if len(read) > limit:
            raise ZeroDivisionError
        return real(self, entry)

    monkeypatch.setattr(ImageFolderSource, "read", counted)
    monkeypatch.setattr("timonel.data.runners.local._CHUNK_RECORDS", 1)
    monkeypatch.setattr("timonel.data.runners.local.usable_cores", lambda: 1)
    with pytest.raises(ZeroDivisionError):
        convert(tmp_path / "raw", place, workspace=workspace, shards=16)
    stopped, limit = len(read), 100
    made = convert(tmp_path / "raw", place, workspace=workspace, shards=16)
    assert 7 <= len(read) - stopped < 20
    made.verify()
    assert set(ObjectStore(place).find()) == {
        "manifest.json",
        *(file.name for file in made.manifest.files),
    }


def test_a_conversion_to_a_bucket_that_was_stopped_after_publishing_ends(
    uri: str, local: Dataset, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, target = Path(local.manifest.source.uri), f"{uri}-new"

    def stopped(*arguments: Any, **options: Any) -> None:
        remote.publish(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("timonel.data.destination.publish_folder", stopped)
        with pytest.raises(KeyboardInterrupt):
            convert(raw, target, workspace=workspace, shards=3)
    dataset = convert(raw, target, workspace=workspace, shards=3)
    assert dataset.digest == local.digest
    assert read_run(workspace, str(dataset.manifest.run_id)).status == "succeeded"
    with pytest.raises(AlreadyExistsError, match="already exists"):
        convert(raw, target, workspace=workspace, shards=3)
