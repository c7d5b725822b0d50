from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.conftest import MakeImages
from timonel.data import Dataset, convert, inspect
from timonel.data.examples import encode_example
from timonel.data.inspection.browsing import describe
from timonel.data.records import frame
from timonel.errors import CorruptError, InputError, NotFoundError, SpecError
from timonel.storage import Workspace


@pytest.fixture(params=["none", "gzip"])
def dataset(request, make_images: MakeImages, tmp_path: Path, workspace: Workspace) -> Dataset:
    source = make_images(count=20)
    return convert(
        source, tmp_path / "data", shards=3, compression=request.param, workspace=workspace
    )


def test_records_are_chosen_by_number_label_and_key(dataset: Dataset) -> None:
    keys = dataset.keys("train")
    found = inspect(dataset.path, start=3, number=2).records
    assert [(each.position, each.key) for each in found] == [(3, keys[3]), (4, keys[4])]
    dogs = inspect(dataset.path, label="dog", number=100).records
    assert [each.key for each in dogs] == [key for key in keys if key.startswith("dog/")]
    assert {each.label for each in dogs} == {"dog"}
    held_out = dataset.keys("test")[-1]
    (one,) = inspect(dataset.path, key=held_out).records
    assert (one.split, one.key) == ("test", held_out)
    assert inspect(dataset.path, start=10_000).records == ()


def test_images_are_written_as_they_were(dataset: Dataset, tmp_path: Path) -> None:
    key = dataset.keys("test")[0]
    found = inspect(dataset.path, split="test", number=1, out=tmp_path / "out")
    path = Path(*found.images)
    assert path.read_bytes() == (tmp_path / "raw" / key).read_bytes()
    assert path.name == f"000000-{key.replace('/', '_')}"


def test_wrong_requests(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has the key 'nope'"):
        inspect(dataset.path, key="nope")
    with pytest.raises(SpecError, match="did you mean 'cat'"):
        inspect(dataset.path, label="catt")
    with pytest.raises(SpecError, match="numbers of records"):
        inspect(dataset.path, number=-1)
    with pytest.raises(SpecError, match="has no splits"):
        inspect(dataset.shards("train")[0], split="train")
    with pytest.raises(NotFoundError, match="no dataset"):
        inspect(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        inspect(dataset.path, out=tmp_path / "file" / "out")


@pytest.mark.parametrize("is_compressed", [False, True])
def test_any_tfrecord_file(is_compressed: bool, tmp_path: Path) -> None:
    payloads = [encode_example({"x": [0.5 * i, 1.0], "name": f"n{i % 2}"}) for i in range(10)]
    content = b"".join(b"".join(frame(payload)) for payload in payloads)
    path = tmp_path / "any.bin"
    path.write_bytes(gzip.compress(content) if is_compressed else content)
    found = inspect(path, start=8, number=5)
    assert [each.features["x"] for each in found.records] == [[4.0, 1.0], [4.5, 1.0]]
    assert found.profile is not None
    columns = found.profile.summary()["columns"]
    assert (columns["x"]["minimum"], columns["x"]["maximum"]) == (0.0, 4.5)
    assert columns["name"]["common"] == {"n0": 5, "n1": 5}
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptError, match="complete TFRecord file"):
        inspect(path)


@pytest.mark.parametrize("content", [b"a,b\n1,2\n" * 10, b"abc", b"\x1f\x8bnot gzip", b"PK" * 9])
def test_other_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"cannot read .*other as tf\.train"):
        inspect(path)


def test_a_name_of_an_image_stays_in_the_folder(tmp_path: Path) -> None:
    from timonel.data import Record

    png = b"\x89PNG\r\n\x1a\n\xff" * 3
    record = Record(7, {"image": [png], "text": [b"text"]}, key="../../etc/<x>.png")
    assert [name for name, _ in record.images()] == ["000007-.._.._etc_x_.png"]
    record = Record(7, {"left": [png], "right": [b"text", png]}, key="x.png")
    assert [name for name, _ in record.images()] == [
        "000007-x.png-left-0.png",
        "000007-x.png-right-1.png",
    ]
    jpeg = {"image": [b"\xff\xd8\xff" * 5]}
    for key, name in (("a.JPEG", "a.JPEG.jpeg"), ("b.jpg", "b.jpg"), ("c.png", "c.png.jpg")):
        assert next(Record(1, jpeg, key=key).images())[0] == f"000001-{name}"


@given(st.lists(st.binary(max_size=300), max_size=12))
def test_any_bytes_are_described(values: list[bytes]) -> None:
    found = describe(values)
    assert found["count"] == len(values)
    assert len(found.get("values", ())) == min(len(values), 8)
