"""Damage of every kind, all of it found at once."""

from __future__ import annotations

import json
import shutil
import struct
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import MakeImages
from timonel.data import Verification, convert, verify
from timonel.data.examples import encode_example
from timonel.data.index import INDEX_NAME
from timonel.data.records import FRAME_BYTES, compress, frame
from timonel.errors import CorruptError, FormatError, NotFoundError
from timonel.storage import Workspace, digest_file


@pytest.fixture(params=["none", "gzip"])
def dataset(request, make_images: MakeImages, tmp_path: Path, workspace: Workspace) -> Path:
    """Forty images in four training shards and others."""
    convert(
        make_images(count=20),
        tmp_path / "data",
        shards=4,
        compression=request.param,
        workspace=workspace,
    )
    return tmp_path / "data"


def shard_of(dataset: Path, number: int = 1) -> Path:
    return sorted(dataset.glob("train-*"))[number]


def rewritten(dataset: Path, change: Callable[[dict], None]) -> None:
    """Change the manifest."""
    path = dataset / "manifest.json"
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


def texts(found: Verification) -> str:
    return "\n".join(f"{each.file}: {each.text}" for each in found.problems)


def test_an_intact_dataset_has_no_problems(dataset: Path) -> None:
    ticks: list[tuple[int, int]] = []
    found = verify(dataset, progress=lambda *seen: ticks.append(seen))
    assert (found.records, found.problems, found.problem_count) == (40, (), 0)
    assert ticks[-1] == (40, 40)
    found.check()


def test_all_damaged_files_are_listed(dataset: Path) -> None:
    first, second = shard_of(dataset, 0), shard_of(dataset, 2)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-3])
    found = verify(dataset)
    assert {first.name, second.name} <= {each.file for each in found.problems}
    assert f"{first.name}: is missing" in texts(found)
    assert "truncated" in texts(found)
    assert "records of train instead of" in texts(found)
    assert INDEX_NAME not in texts(found)
    assert found.records < 40
    with pytest.raises(CorruptError, match=r"problems in .*the first: "):
        found.check()


@pytest.mark.parametrize("dataset", ["none"], indirect=True)
def test_records_after_a_damaged_one_are_read(dataset: Path) -> None:
    shard = shard_of(dataset)
    content = bytearray(shard.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    for position in (20, FRAME_BYTES + length + 20):  # payloads of the first two records
        content[position] ^= 1
    shard.write_bytes(content)
    found = verify(dataset)
    assert found.records == 38
    assert texts(found).count("a payload with a wrong checksum") == 2
    assert f"{shard.name}: has a payload with a wrong checksum at byte 0" in texts(found)


def test_the_index_is_compared_with_the_shards(dataset: Path) -> None:
    path = dataset / INDEX_NAME
    numbers = np.frombuffer(path.read_bytes(), "<u8").copy()
    numbers[-1] += 1
    path.write_bytes(numbers.tobytes())
    assert "records.index: has digest" in texts(verify(dataset))

    def change(body: dict) -> None:
        body["index"]["digest"] = digest_file(path)

    rewritten(dataset, change)
    assert "records.index: wrong positions of the records of" in texts(verify(dataset))
    path.unlink()
    assert "records.index: is missing" in texts(verify(dataset))


def test_wrong_counts_and_labels_in_the_manifest(dataset: Path) -> None:
    def change(body: dict) -> None:
        body["label_counts"]["train"]["cat"] += 1
        body["counts"]["test"] += 2
        body["labels"] = ["cat", "wolf"]

    rewritten(dataset, change)
    found = texts(verify(dataset))
    assert "manifest.json: was changed: its content differs from its checksum" in found
    assert "intact records of train with label cat instead of" in found
    assert "intact records of test instead of" in found


def test_records_that_are_no_records_of_the_dataset(dataset: Path) -> None:
    shard = shard_of(dataset)
    bad = [
        b"\xff\xff no example",
        encode_example({"key": "", "label": 0}),
        encode_example({"key": "k", "label": 7, "image": b""}),
        encode_example({"key": "k", "label": 0, "image": b""}),
        encode_example({"key": "k", "label": 0, "image": b""}),
        encode_example({"key": "l", "label": 0, "image": b"", "other": 1}),
        encode_example({"label": 0, "image": b""}),
        encode_example({"key": "m", "label": [0, 1], "image": b""}),
    ]
    content = b"".join(b"".join(frame(payload)) for payload in bad)
    shard.write_bytes(compress(content) if shard.suffix == ".gz" else content)
    found = texts(verify(dataset))
    assert "not a tf.train.Example" in found
    assert "the record k has the label 7, which is unknown" in found
    assert "2 records have the key of another record" in found
    assert "the record l has other features than those before it" in found
    assert "a record has no key" in found
    assert "the record m has 2 labels instead of 1" in found


def test_many_problems_are_counted_and_some_listed(dataset: Path) -> None:
    content = b"".join(frame(b"\xff")[0] + b"\xff" + b"0000" for _ in range(50))
    shard = shard_of(dataset)
    shard.write_bytes(compress(content) if shard.suffix == ".gz" else content)
    found = verify(dataset)
    assert found.problem_count >= 50
    assert len([each for each in found.problems if each.file == shard.name]) == 20


def test_a_dataset_in_a_bucket_is_read_from_there(
    dataset: Path, faulty, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    from timonel.data import Dataset
    from timonel.storage.object_store import ObjectStore

    bucket, _ = faulty
    uri = f"{bucket}/{uuid.uuid4().hex}"
    store = ObjectStore(uri)
    store.upload({path.name: path for path in dataset.iterdir()})
    assert verify(uri).problem_count == 0
    Dataset.open(uri)  # now it is in the cache
    shard = shard_of(dataset)
    store.write(shard.name, shard.read_bytes()[:-1])
    store.delete([shard_of(dataset, 0).name])
    found = verify(uri)
    assert f"{shard_of(dataset, 0).name}: is missing" in texts(found)
    assert f"{shard.name}: has digest" in texts(found)
    shutil.rmtree(dataset)
    with pytest.raises(NotFoundError, match=r"it has no manifest\.json"):
        verify(f"{bucket}/nothing")


@pytest.mark.parametrize("name", ["/etc/hostname", "../other/shard", "a/b", "..", "", "a\0b"])
def test_a_manifest_cannot_name_files_elsewhere(
    dataset: Path, faulty, name: str, tmp_path: Path
) -> None:
    from timonel.storage.object_store import ObjectStore

    precious = tmp_path / "precious"
    precious.write_text("x")
    name = str(precious) if name.startswith("/") else name
    rewritten(dataset, lambda body: body["shards"][0].update(name=name))
    uri = f"{faulty[0]}/{uuid.uuid4().hex}"
    ObjectStore(uri).upload({path.name: path for path in dataset.iterdir()})
    for place in (dataset, uri):
        with pytest.raises(CorruptError, match="is not the name of a file"):
            verify(place)
    assert precious.read_text() == "x"


def test_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no dataset"):
        verify(tmp_path)
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(NotFoundError, match="it is a file"):
        verify(tmp_path / "a.tfrecord")


def test_any_changed_or_lost_byte_is_found(dataset: Path) -> None:
    random = np.random.default_rng(0)
    files = sorted(dataset.iterdir())
    assert len(files) >= 8
    for _ in range(60):
        path = files[random.integers(len(files))]
        content = path.read_bytes()
        position = int(random.integers(len(content)))
        flipped = bytes([content[position] ^ (1 << int(random.integers(8)))])
        for damaged in (
            content[:position] + flipped + content[position + 1 :],
            content[:position],
            content + flipped,
        ):
            path.write_bytes(damaged)
            try:
                files_with_problems = {each.file for each in verify(dataset).problems}
            except (CorruptError, FormatError):  # the manifest cannot be read
                files_with_problems = {"manifest.json"}
            assert path.name in files_with_problems, position
        path.write_bytes(content)
    assert verify(dataset).problem_count == 0
