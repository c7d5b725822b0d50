"""Finding input files, on disks and in buckets; predictions to buckets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import s3fs

from tests.storage.faulty import FaultyServer
from timonel.batch import BatchPrediction, predict_batch
from timonel.batch.inputs import find_inputs, format_of
from timonel.errors import AlreadyExistsError, DataError, InputError, NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.storage.location import Location
from timonel.tracking import list_runs


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "in"
    names = ("b/2.jpg", "a.JPG", "_DSC01.jpg", "b/.hidden.jpg", ".cache/x.jpg", "notes.txt")
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def keys(*inputs: object, **options: str) -> list[str]:
    return [file.key for file in find_inputs([str(each) for each in inputs], **options).files]


def test_a_folder_is_read_recursively_in_order(tree: Path) -> None:
    assert keys(tree) == ["_DSC01.jpg", "a.JPG", "b/2.jpg"]
    assert find_inputs([tree]).ignored == 1


def test_keys_of_several_inputs_and_patterns(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.parent)
    assert keys("in/*.jpg") == ["_DSC01.jpg"]
    assert keys("in/**/*.jpg") == ["_DSC01.jpg", "b/2.jpg"]
    assert keys("in/a.JPG") == ["a.JPG"]
    assert keys("in/a.JPG", "in/b") == ["in/a.JPG", "in/b/2.jpg"]
    with pytest.raises(SpecError, match=r"in/b/2.jpg is named twice"):
        keys("in/b", "in/b/2.jpg")


def test_what_cannot_be_predicted(tree: Path) -> None:
    (tree / "rows.csv").write_text("x\n1\n")
    with pytest.raises(SpecError, match="files of several formats: 3 images, 1 csv"):
        keys(tree)
    with pytest.raises(NotFoundError, match=r"no folder or file at .*nothing"):
        keys(tree / "nothing")
    with pytest.raises(DataError, match="found no files"):
        keys(tree / "*.png")
    with pytest.raises(DataError, match="found 1 file of unknown type"):
        keys(tree / "notes.txt")
    assert keys(tree / "notes.txt", input_format="jsonl") == ["notes.txt"]
    with pytest.raises(SpecError, match="expected one of the formats"):
        keys(tree, input_format="xml")
    with pytest.raises(SpecError, match="nothing to predict"):
        keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.JPEG", "images"),
        ("a.csv.gz", "csv"),
        ("a.json", "jsonl"),
        ("a.jsonl.gz", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.parquet.gz", None),
        ("data.tfrecord-00000-of-00010", "tfrecord"),
        ("a.tfrecords.gz", "tfrecord"),
        ("a.csv.zst", "csv"),
        ("a.arrow", None),
        ("a", None),
    ],
)
def test_the_format_of_a_name(name: str, expected: str | None) -> None:
    assert format_of(Location(name)) == expected


def test_files_in_a_bucket(
    models: Workspace, faulty: tuple[str, FaultyServer], png, tmp_path: Path
) -> None:
    uri, _ = faulty
    fs = s3fs.S3FileSystem()
    for number in range(5):
        fs.pipe(f"{uri}/photos/{number}.png", png(number % 2))
    text = "".join(json.dumps([float(i), 0.5]) + "\n" for i in range(10))
    fs.pipe(f"{uri}/rows.jsonl", text.encode())
    fs.pipe(f"{uri}/rows.csv", b"age,name,seats\n1,ann,2\n")

    def predicted(model: str, name: str) -> list[dict]:
        out = tmp_path / f"{model}.jsonl"
        predict_batch(model, f"{uri}/{name}", out, workspace=models, overwrite=True)
        return [json.loads(line) for line in out.read_text().splitlines()]

    assert [(row["key"], row["label"]) for row in predicted("images", "photos")] == [
        (f"{number}.png", "dog" if number % 2 else "cat") for number in range(5)
    ]
    assert [row["key"] for row in predicted("images", "photos/[12].png")] == ["1.png", "2.png"]
    assert [row["doubled"][0] for row in predicted("doubler", "rows.jsonl")] == [
        2.0 * i for i in range(10)
    ]
    assert predicted("table", "rows.csv") == [{"key": "rows.csv#1", "value": 7.0}]
    fs.pipe(f"{uri}/rows.csv", b"age,name,seats\n2,ann,2\n")
    assert predicted("table", "rows.csv") == [{"key": "rows.csv#1", "value": 9.0}]


@pytest.mark.slow
def test_predictions_to_a_bucket(
    models: Workspace,
    faulty: tuple[str, FaultyServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri, server = faulty
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("timonel.batch.plan._SHARD_BYTES", 200)
    fs, rows = s3fs.S3FileSystem(), tmp_path / "rows.jsonl"
    rows.write_text("".join(f"[{i}.0, 0.5]\n" for i in range(99)) + "no\n")

    def predicted(out: str, **options: Any) -> BatchPrediction:
        return predict_batch("doubler", rows, out, workspace=models, max_errors=0.1, **options)

    local = predict_batch("doubler", rows, tmp_path / "o.jsonl", workspace=models, max_errors=0.1)
    expected = Path(local.out).read_bytes()
    out = f"{uri}/out/o.jsonl"
    server.fault = lambda method, path, _: "denied" if method == "PUT" and "o.js" in path else None
    with pytest.raises(InputError):
        predicted(out)
    assert fs.find(f"{uri}/out") == []
    server.fault = lambda *_: None
    done = predicted(out)
    assert (done.out, done.rows, done.errors) == (out, 99, f"{out}.errors.jsonl")
    assert fs.cat(out) == expected
    assert json.loads(fs.cat(done.errors))["key"] == "rows.jsonl#100"
    assert len(list_runs(models, kind="predict")) == 2, "the run that was stopped goes on"
    with pytest.raises(AlreadyExistsError, match=r"o.jsonl already exists: .*--overwrite"):
        predicted(out)

    folder = f"{uri}/parts"
    done = predicted(f"{folder}/", format="jsonl")
    parts = sorted(each for each in fs.find(folder) if "part-" in each)
    assert (done.out, done.errors) == (folder, f"{folder}/errors.jsonl")
    assert len(parts) > 3
    assert b"".join(map(fs.cat, parts)) == expected
    puts = [path for method, path, _ in server.seen if method == "PUT" and "/parts/" in path]
    assert puts[-1].partition("?")[0].endswith(parts[-1].rpartition("/")[2])
    predicted(folder, overwrite=True)
    assert {each.rpartition(".")[2] for each in fs.find(folder)} == {"parquet", "jsonl"}
    assert len(fs.find(folder)) == len(parts) + 1
    fs.pipe(f"{folder}/mine.txt", b"keep")
    with pytest.raises(AlreadyExistsError, match=r"mine.txt is not part of predictions"):
        predicted(folder, overwrite=True)
    with pytest.raises(InputError, match="overlaps with the input"):
        predict_batch("doubler", uri, f"{uri}/o.csv", workspace=models)
    with pytest.raises(SpecError, match=r"cannot be written to https://h/o.csv"):
        predicted("https://h/o.csv")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_pipes_in_a_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    os.mkfifo(tmp_path / "b.png")
    assert keys(tmp_path) == ["a.png"]
