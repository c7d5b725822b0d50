from __future__ import annotations

import datetime as dt
import errno
import io
import itertools
import json
import math
import os
import re
import shutil
import unicodedata
from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PillowImage

from tests.data.conftest import MakeCsv, MakeImages
from timonel.data.conversion import convert
from timonel.data.dataset import Dataset
from timonel.data.schema import SPLITS, ImageCheck, sort_labels
from timonel.data.sources import Entry, Raw, transient
from timonel.data.sources.images import ImageFolderSource
from timonel.data.summary import summarise
from timonel.errors import (
    AlreadyExistsError,
    CorruptError,
    DataError,
    InputError,
    NotFoundError,
    SpecError,
    TimonelError,
)
from timonel.storage import Workspace, digest_file, digest_tree, write_document
from timonel.storage.atomic import aside_name
from timonel.storage.documents import read_document
from timonel.storage.locks import LockedError
from timonel.tracking import list_runs


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / "set"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.tfrecord")}


def nothing_is_left(out: Path) -> bool:
    return not out.parent.exists() or not any(out.parent.iterdir())


def test_images_become_records(make_images: MakeImages, out: Path, workspace: Workspace) -> None:
    root = make_images(count=20)
    dataset = convert(root, out, workspace=workspace)
    assert dataset == Dataset.open(out)
    assert dataset.labels == ("cat", "dog")
    assert all(dataset.count(split) for split in SPLITS)
    assert dataset.count() == 40
    read = {}
    for split in SPLITS:
        for example in dataset.examples(split):
            read[example["key"]] = example
            assert dataset.labels[example["label"]] == example["key"].split("/")[0]
            assert example["image"] == (root / example["key"]).read_bytes()
    assert len(read) == 40
    dataset.verify()


def test_every_label_is_divided_and_splits_are_mixed(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    dataset = convert(make_images(count=150), out, workspace=workspace)
    counts = dataset.manifest.label_counts
    for label in ("cat", "dog"):
        assert 100 < counts["train"][label] < 140
        assert sum(counts[split][label] for split in SPLITS) == 150
        assert 5 < counts["test"][label] < 30
    labels = [example["label"] for example in dataset.examples("train")]
    assert sum(a != b for a, b in itertools.pairwise(labels)) > 60


def test_equal_input_and_seed_give_equal_bytes(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    root = make_images()
    one = convert(root, tmp_path / "one", workspace=workspace)
    two = convert(root, tmp_path / "two", workspace=workspace)
    other = convert(root, tmp_path / "other", seed=1, workspace=workspace)
    assert contents(one.path) == contents(two.path) != contents(other.path)
    left = {"run_id": None}
    assert one.manifest.model_copy(update=left) == two.manifest.model_copy(update=left)
    assert one.digest != other.digest
    assert one.manifest.source.digest == other.manifest.source.digest == digest_tree(root)


def test_shards_are_cut_by_number_or_size(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    root = make_images(count=50)
    by_number = convert(root, tmp_path / "number", shards=4, workspace=workspace)
    assert Counter(shard.split for shard in by_number.manifest.shards) == {
        "train": 4,
        "validation": 1,
        "test": 1,
    }
    assert [path.name for path in by_number.shards("train")] == [
        f"train-{index:05d}-of-00004.tfrecord" for index in range(4)
    ]
    assert {shard.records for shard in by_number.manifest.of_split("train")} == {20, 21}
    by_size = convert(root, tmp_path / "size", shard_bytes="2kB", workspace=workspace)
    sizes = [shard.bytes for shard in by_size.manifest.of_split("train")]
    assert len(sizes) > 4
    assert max(sizes) < 6000
    keys = [example["key"] for example in by_number.examples("train")]
    assert keys == by_size.keys("train")


def test_rows_become_records(make_csv: MakeCsv, out: Path, workspace: Workspace) -> None:
    dataset = convert(make_csv(), out, label="good", workspace=workspace)
    assert dataset.labels == ("no", "yes")
    example = next(example for example in dataset.examples("train"))
    row = int(example["key"].split("#")[1]) - 1
    assert example["column/size"] == row + 0.5
    assert example["column/colour"] == (b"red" if row % 3 else b"blue")
    assert example["label"] == row % 2


def test_numbers_to_predict(make_csv: MakeCsv, out: Path, workspace: Workspace) -> None:
    path = make_csv("a,y", *(f"{i},{i}.5" for i in range(50)))
    dataset = convert(path, out, label="y", workspace=workspace)
    assert dataset.task == "regression"
    assert dataset.labels == ()
    values = [example["label"] for example in dataset.examples("train")]
    target = dataset.manifest.target
    assert target is not None
    assert target.mean == pytest.approx(sum(values) / len(values))
    assert (target.minimum, target.maximum) == (min(values), max(values))


def test_the_run_is_recorded_with_what_it_read_and_made(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    root = make_images()
    dataset = convert(root, out, seed=3, workspace=workspace)
    (run,) = list_runs(workspace)
    assert (run.kind, run.status, run.id) == ("convert", "succeeded", dataset.manifest.run_id)
    assert run.params["seed"] == 3
    (source,) = run.inputs
    assert (source.type, source.uri, source.digest) == ("files", str(root), digest_tree(root))
    (made,) = run.outputs
    assert (made.type, made.uri, made.digest) == ("dataset", str(out), dataset.digest)
    name = dataset.digest.removeprefix("sha256:")
    reference = read_document(workspace.datasets / f"{name}.json", "dataset-reference")
    assert reference["uri"] == str(out)


def test_progress_ends_with_everything_and_comes_seldom(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    seen: list[tuple[int, int]] = []
    convert(
        make_images(count=50),
        out,
        workspace=workspace,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (100, 100)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) < 50


def test_how_images_are_checked(
    make_images: MakeImages, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    root, plain = make_images(), make_csv("a,y", *(f"{i},{i % 2}" for i in range(20)))
    pictures = make_csv("p,y", *(f"{root}/cat/00{i}.png,{i % 2}" for i in range(8)), name="p.csv")
    datasets = {}
    for check in get_args(ImageCheck):
        datasets[check] = convert(root, tmp_path / check, check=check, workspace=workspace)
        assert datasets[check].manifest.source.check == check
        rows = convert(
            pictures,
            tmp_path / f"{check}-rows",
            label="y",
            columns={"p": "image"},
            check=check,
            workspace=workspace,
        )
        assert rows.manifest.source.check == check
    assert datasets["decode"].digest == datasets["structure"].digest
    table = convert(plain, tmp_path / "plain", label="y", workspace=workspace)
    assert table.manifest.source.check is None
    with pytest.raises(SpecError, match="expected check= as 'decode' or 'structure', got 'none'"):
        convert(root, tmp_path / "other", check="none", workspace=workspace)  # type: ignore[arg-type] # as a script may


def test_one_split_only(make_images: MakeImages, out: Path, workspace: Workspace) -> None:
    dataset = convert(make_images(), out, splits=[1], workspace=workspace)
    assert [dataset.count(split) for split in SPLITS] == [20, 0, 0]
    assert list(dataset.examples("test")) == []


def test_too_many_unusable_images(
    make_images: MakeImages, out: Path, workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_images()
    bad = root / "dog" / "004.png"
    bad.write_bytes(bad.read_bytes()[:-30])
    (root / "cat" / "empty.jpg").touch()
    with pytest.raises(
        DataError,
        match=r"2 of 21 records cannot be used, above the limit of 5\.00%: cat/empty\.jpg: an "
        r"empty file: see .*rejected\.jsonl; repair or remove .* --max-rejected to continue",
    ):
        convert(root, out, max_rejected=0.05, workspace=workspace)
    assert list_runs(workspace)[0].status == "failed"
    (kept,) = out.parent.iterdir()
    assert caplog.messages[-1] == f"finished shards are kept in {kept}"
    assert rejected(kept) == {"cat/empty.jpg": "an empty file", "dog/004.png": DAMAGED}
    dataset = convert(root, out, max_rejected=0.1, workspace=workspace)
    assert [path.name for path in out.parent.iterdir()] == ["set"]
    assert dataset.count() == 19
    assert rejected(out) == {"cat/empty.jpg": "an empty file", "dog/004.png": DAMAGED}
    assert dataset.manifest.source.rejected_count == 2
    assert dataset.manifest.source.rejected[1].key == "dog/004.png"
    assert "dog/004.png" not in [key for split in SPLITS for key in dataset.keys(split)]
    dataset.verify()
    (out / "rejected.jsonl").write_text("")
    with pytest.raises(CorruptError, match=r"rejected\.jsonl"):
        dataset.verify()


DAMAGED = "damaged PNG image: it is truncated"


def rejected(folder: Path) -> dict[str, str]:
    lines = (folder / "rejected.jsonl").read_text().splitlines()
    return {line["key"]: line["reason"] for line in map(json.loads, lines)}


def test_too_many_unusable_records_in_the_scan(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    path = make_csv("a,y", *(f"{i},{i % 2}" for i in range(40)), "1,2,3")
    with pytest.raises(
        DataError, match=r"at least 1 of 41 records .* rows\.csv line 42: expected 2 values"
    ):
        convert(path, out, label="y", workspace=workspace)
    (kept,) = out.parent.iterdir()
    assert rejected(kept) == {"rows.csv line 42": "expected 2 values, got 3"}
    dataset = convert(path, out, label="y", max_rejected=0.03, workspace=workspace)
    assert (dataset.count(), dataset.manifest.source.rejected_count) == (40, 1)


@pytest.mark.parametrize("limit", [-0.1, 1.5])
def test_a_limit_that_is_no_fraction(
    make_images: MakeImages, out: Path, workspace: Workspace, limit: float
) -> None:
    with pytest.raises(SpecError, match="expected a fraction of rejected records from 0 to 1"):
        convert(make_images(), out, max_rejected=limit, workspace=workspace)


def test_a_label_without_a_usable_record(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    root = make_images()
    for path in (root / "dog").iterdir():
        path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="no usable record of 'dog' in the training split"):
        convert(root, out, max_rejected=1, workspace=workspace)
    assert not out.exists()


def test_transient_errors_are_retried_then_raised(
    make_images: MakeImages, out: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, failures, slept = make_images(), {"dog/004.png": 2}, []
    real = ImageFolderSource.read

    def read(self: ImageFolderSource, entry: Entry) -> Raw:
        if failures.get(entry.key, 0) > 0:
            failures[entry.key] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return real(self, entry)

    monkeypatch.setattr(ImageFolderSource, "read", read)
    monkeypatch.setattr(transient.retried, "__defaults__", (slept.append,))
    whole = convert(root, out.with_name("one"), workspace=workspace)
    assert (whole.count(), slept) == (20, [0.1, 1.0])
    failures["dog/004.png"] = 100
    with pytest.raises(
        InputError, match=r"cannot read dog/004\.png after 4 attempts: Input/output"
    ):
        convert(root, out, workspace=workspace)
    failures.clear()
    assert convert(root, out, workspace=workspace).digest == whole.digest
    assert whole.manifest.source.rejected_count == 0


def test_no_such_source(tmp_path: Path, out: Path, workspace: Workspace) -> None:
    with pytest.raises(NotFoundError, match=r"no folder or file at .*: check the path"):
        convert(tmp_path / "nowhere", out, workspace=workspace)


def test_an_empty_folder(tmp_path: Path, out: Path, workspace: Workspace) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"found nothing: put the images into one folder"):
        convert(tmp_path / "empty", out, workspace=workspace)
    assert nothing_is_left(out)
    assert list_runs(workspace) == []


def test_a_file_that_no_source_reads(tmp_path: Path, out: Path, workspace: Workspace) -> None:
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(InputError, match=r"no installed source reads the file"):
        convert(tmp_path / "notes.txt", out, workspace=workspace)


def test_a_kind_that_is_none(make_images: MakeImages, out: Path, workspace: Workspace) -> None:
    with pytest.raises(SpecError, match="source kinds auto, images, table, got 'videos'"):
        convert(make_images(), out, kind="videos", workspace=workspace)
    with pytest.raises(InputError, match=r"no installed source of kind table reads the folder"):
        convert(out.parent.parent / "raw", out, kind="table", workspace=workspace)


@pytest.mark.parametrize("place", ["raw", "raw/set", "."])
def test_source_and_destination_must_be_apart(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace, place: str
) -> None:
    root = make_images()
    before = digest_tree(root)
    with pytest.raises(InputError, match="overlap"):
        convert(root, tmp_path / place, overwrite=True, workspace=workspace)
    assert digest_tree(root) == before


def test_an_output_that_exists(make_images: MakeImages, out: Path, workspace: Workspace) -> None:
    root = make_images()
    convert(root, out, workspace=workspace)
    before = contents(out)
    with pytest.raises(AlreadyExistsError, match=re.escape(f"{out} already exists")):
        convert(root, out, seed=1, workspace=workspace)
    assert contents(out) == before
    convert(root, out, seed=1, overwrite=True, workspace=workspace)
    assert contents(out) != before
    assert [path.name for path in out.parent.iterdir()] == ["set"]


def test_only_a_dataset_is_overwritten(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    root = make_images()
    out.mkdir(parents=True)
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(AlreadyExistsError, match="cannot be overwritten: it is not a dataset"):
        convert(root, out, overwrite=True, workspace=workspace)
    (out / "thesis.txt").unlink()
    assert convert(root, out, workspace=workspace).count() == 20
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(AlreadyExistsError, match=r"thesis\.txt is not part of the dataset"):
        convert(root, out, overwrite=True, workspace=workspace)
    assert (out / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("is_newer", [False, True])
def test_no_dataset_inside_another(
    is_newer: bool, make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    root = make_images()
    convert(root, out, workspace=workspace)
    if is_newer:
        write_document(out / "manifest.json", "dataset", {})
        text = (out / "manifest.json").read_text()
        (out / "manifest.json").write_text(text.replace('"format": 1', '"format": 99'))
    before = contents(out)
    for place in (out / "sub", out / "sub" / "sub"):
        with pytest.raises(InputError, match=re.escape(f"{place} is inside the dataset {out}")):
            convert(root, place, overwrite=True, workspace=workspace)
    assert contents(out) == before


def test_a_manifest_that_is_no_datasets_is_no_obstacle(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    out.parent.mkdir()
    (out.parent / "manifest.json").write_text('{"name": "a web page"}')
    assert convert(make_images(), out, workspace=workspace).count() == 20


def test_what_a_killed_conversion_has_left_is_removed(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    left = out.with_name(aside_name("set").replace(str(os.getpid()), "999999999", 1))
    left.mkdir(parents=True)
    (left / "train-00000-of-00001.tfrecord").write_bytes(b"half")
    convert(make_images(), out, workspace=workspace)
    assert [path.name for path in out.parent.iterdir()] == ["set"]


def test_an_output_that_cannot_be_written(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*file/set: Not a directory"):
        convert(make_images(), tmp_path / "file" / "set", workspace=workspace)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full(
    make_images: MakeImages, out: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def open_(path: Path, mode: str = "r", *args: int, **options: int) -> object:
        full = path.suffix == ".tfrecord" and mode == "wb"
        return real(Path("/dev/full") if full else path, mode, *args, **options)  # type: ignore[call-overload] # passed on

    monkeypatch.setattr(Path, "open", open_)
    with pytest.raises(InputError, match="No space left on device"):
        convert(make_images(), out, workspace=workspace)
    monkeypatch.undo()
    assert nothing_is_left(out)


def test_fewer_records_than_splits(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    with pytest.raises(DataError, match="2 records are too few for a validation split"):
        convert(make_images(count=1), out, workspace=workspace)
    assert nothing_is_left(out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": (0.5, 0.1)}, "add up to 1"),
        ({"shards": 0}, "the number of shards must be positive, got 0"),
        ({"shard_bytes": "0B"}, "the number of bytes per shard must be positive, got 0"),
        ({"shard_bytes": "many"}, "expected a size such as 64MB"),
        ({"splits": "0.8,0.1,0.1"}, r"^expected splits= as a list or None, got '0.8,0.1,0.1'"),
        ({"splits": ["most", "rest"]}, r"^expected splits= as a list or None, got \['most'"),
        ({"folders": "label"}, r"^expected folders= as 'auto' or .*: did you mean 'labels'\?$"),
        ({"shards": "4"}, r"^expected shards= as a whole number or None, got '4'"),
        ({"seed": None}, r"^expected seed= as a whole number, got None"),
        ({"compression": "zip"}, "^expected compression= as 'none' or 'gzip', got 'zip'"),
        ({"max_rejected": "0.1"}, "^expected max_rejected= as a finite number, got '0.1'"),
        ({"columns": "a=number"}, "^expected columns= as a dict or None, got 'a=number'"),
        ({"image_size": 224}, r"^expected image_size= as .*, got 224: use \(224, 224\)$"),
        ({"max_rejected": math.nan}, "^expected max_rejected= as a finite number, got nan"),
        ({"column_names": "a,b"}, "^expected column_names= as a list, got 'a,b'"),
        ({"progress": 3}, "^expected progress= as a function or None, got 3"),
        ({"split": 3}, r"^convert\(\) has no argument 'split': did you mean"),
    ],
)
def test_options_that_make_no_sense(
    make_images: MakeImages,
    out: Path,
    workspace: Workspace,
    options: dict[str, object],
    message: str,
) -> None:
    with pytest.raises(SpecError, match=message):
        convert(make_images(), out, workspace=workspace, **options)  # type: ignore[arg-type] # wrong on purpose
    assert nothing_is_left(out)


def test_control_c_in_the_midst_leaves_nothing(
    make_images: MakeImages, out: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_images(count=100)

    def stop(done: int, total: int) -> None:
        assert any(out.parent.iterdir()), "the work had not begun"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(root, out, workspace=workspace, progress=stop)
    assert nothing_is_left(out)
    (run,) = list_runs(workspace)
    assert (run.status, run.outputs) == ("stopped", ())


def test_an_error_in_a_thread_is_the_callers(
    make_images: MakeImages, out: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: object, entry: object) -> object:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(ImageFolderSource, "read", read)
    with pytest.raises(ZeroDivisionError):
        convert(make_images(), out, workspace=workspace)
    assert nothing_is_left(out)


def test_the_bytes_do_not_depend_on_the_number_of_threads(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_images(count=100)
    one = convert(root, tmp_path / "one", workspace=workspace)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    seven = convert(root, tmp_path / "seven", workspace=workspace)
    assert contents(one.path) == contents(seven.path)


def test_labels_that_are_whole_numbers_are_in_their_order() -> None:
    assert sort_labels({"10", "9", "2"}) == ["2", "9", "10"]
    assert sort_labels({"b10", "b9", "a"}) == ["a", "b10", "b9"]


def test_the_manifest_is_plain_json(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    convert(make_images(), out, workspace=workspace)
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["kind"], manifest["format"]) == ("dataset", 1)
    assert manifest["schema"]["type"] == "images"
    assert manifest["schema"]["size"] == [6, 5]


def test_splits_of_the_source_and_identical_images(
    make_images: MakeImages, out: Path, workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    home = make_images(count=9, name="home/train").parent
    for index, path in enumerate(sorted((home / "train").rglob("*.png"))):
        split = ("validation", "test", "train")[index % 3]
        target = home / split / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    leaked = next((home / "test" / "cat").iterdir())
    shutil.copy(leaked, home / "train" / "dog" / "leaked.png")
    dataset = convert(home, out, workspace=workspace)
    assert dataset.labels == ("cat", "dog")
    assert {split: dataset.count(split) for split in SPLITS} == dict.fromkeys(SPLITS, 6)
    for split in SPLITS:
        assert {key.split("/")[0] for key in dataset.keys(split)} == {split}
    source = dataset.manifest.source
    assert (source.duplicate_count, source.contradiction_count) == (1, 1)
    assert source.left_out[0].key == "train/dog/leaked.png"
    assert (source.left_out_count, source.rejected_count) == (1, 0)
    assert "1 image left out, the first: train/dog/leaked.png: identical to test" in caplog.text
    assert source.duplicates[0].digest == digest_file(leaked)
    assert "1 image with contradictory labels" in caplog.text
    anew = convert(home, out, splits=(0.5, 0.25, 0.25), overwrite=True, workspace=workspace)
    assert anew.count() == 19
    assert (
        sum(
            len({"train/dog/leaked.png", f"test/cat/{leaked.name}"} & set(anew.keys(split))) == 2
            for split in SPLITS
        )
        == 1
    )


def test_types_of_columns_from_python(make_csv: MakeCsv, out: Path, workspace: Workspace) -> None:
    path = make_csv("a,b,y", *(f"{i},text {i},{'pq'[i % 2]}" for i in range(40)))
    columns = {"a": "string", "b": "str"}
    dataset = convert(path, out, label="y", columns=columns, workspace=workspace)
    assert [column.role for column in dataset.manifest.columns] == ["categorical"] * 2 + ["label"]
    assert "a  category" in str(summarise(dataset))
    with pytest.raises(SpecError, match="unknown column type 'floot'"):
        convert(path, out, label="y", columns={"a": "floot"}, workspace=workspace)


def test_a_place_whose_name_is_not_utf8(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/ni\xf1os"))
    with pytest.raises(InputError, match=r"name of the destination .*xf1os is not UTF-8: rename"):
        convert(make_images(), strange, workspace=workspace)


def test_a_dataset_prints_in_one_line(make_csv: MakeCsv, out: Path, workspace: Workspace) -> None:
    dataset = convert(make_csv(), out, label="good", workspace=workspace)
    assert str(dataset) == (
        f"Dataset({str(out)!r}: train 31, validation 4, test 5; classification, 2 labels; "
        f"{dataset.manifest.id})"
    )


def test_rows_of_a_group_stay_in_one_split(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    lines = [f"p{i % 25},{i},{i % 2}" for i in range(200)]
    path = make_csv("patient,a,y", *lines)
    dataset = convert(path, out, label="y", group_by="patient", workspace=workspace)
    (role,) = (column for column in dataset.manifest.columns if column.name == "patient")
    assert role.role == "group"
    split_of: dict[int, set[str]] = {}
    for split in SPLITS:
        for key in dataset.keys(split):
            patient = (int(key.rpartition("#")[2]) - 1) % 25
            split_of.setdefault(patient, set()).add(split)
    assert all(len(splits) == 1 for splits in split_of.values())
    assert {split for splits in split_of.values() for split in splits} == set(SPLITS)


def test_a_group_in_several_given_splits_is_an_error(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    lines = [f"p{i % 25},{i},{'train' if i < 150 else 'test'},{i % 2}" for i in range(200)]
    path = make_csv("patient,a,split,y", *lines)
    with pytest.raises(
        DataError, match="assigns the group patient p0 to the splits train and test"
    ):
        convert(path, out, label="y", group_by="patient", workspace=workspace)
    assert nothing_is_left(out)
    with pytest.raises(SpecError, match="no column 'doctor' to group by"):
        convert(path, out, label="y", group_by="doctor", workspace=workspace)


def test_identical_rows_stay_in_one_split_and_are_reported(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    rows = [f"{i}.5,w{i % 3},{i % 2}" for i in range(200)]
    path = make_csv("a,b,y", *rows, *rows[:10])
    dataset = convert(path, out, label="y", workspace=workspace)
    split_of = {int(key.rpartition("#")[2]): s for s in SPLITS for key in dataset.keys(s)}
    assert all(split_of[i + 1] == split_of[i + 201] for i in range(10))
    assert dataset.manifest.source.duplicate_count == 10
    assert any("10 duplicate rows" in line for line in summarise(dataset).warnings)


def test_rows_that_repeat_by_nature_are_divided_one_by_one(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    path = make_csv("a,b,y", *(f"w{i % 3},{i % 2},{i % 2}" for i in range(600)))
    dataset = convert(path, out, label="y", workspace=workspace)
    assert dataset.manifest.source.duplicate_count == 0
    assert 30 < dataset.count("test") < 90
    (warning,) = summarise(dataset).warnings
    assert warning.startswith("600 rows are in groups of identical rows that exceed 1 %")


@pytest.mark.parametrize("copies", [1, 3])
def test_tables_with_many_copies_do_not_leak(
    make_csv: MakeCsv, out: Path, workspace: Workspace, copies: int
) -> None:
    rows = [f"{i}.5,w{i % 3},{i % 2}" for i in range(300)]
    path = make_csv("a,b,y", *rows, *rows[:60] * copies)
    dataset = convert(path, out, label="y", workspace=workspace)
    values = {
        split: {(e["column/a"], e["column/b"]) for e in dataset.examples(split)} for split in SPLITS
    }
    assert sum(map(len, values.values())) == len(set().union(*values.values())) == 300
    assert any("60 duplicate rows" in line for line in summarise(dataset).warnings)


def test_a_dropped_column_leaves_rows_in_their_splits(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    rows = [f"{i}.5,w{i % 3},{i % 7},id {i},{i % 2}" for i in range(200)]
    path = make_csv("a,b,c,id,y", *rows)
    keys = []
    for number, columns in enumerate(({}, {"b": "drop"}, {"c": "drop", "id": "drop"})):
        dataset = convert(
            path, tmp_path / str(number), label="y", columns=columns, workspace=workspace
        )
        keys.append({split: set(dataset.keys(split)) for split in SPLITS})
    assert keys[0] == keys[1] == keys[2]


def test_bad_values_above_the_limit_fail_with_row_column_and_cure(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    path = make_csv("price,y", *(f"{'old' if i in (7, 50) else i},{i % 2}" for i in range(100)))
    with pytest.raises(DataError) as caught:
        convert(path, out, label="y", workspace=workspace)
    assert caught.value.message == (
        "at least 2 of 100 records cannot be used, above the limit of 1.00%: "
        "rows.csv#8: 'old' is not a finite number in column 'price' in line 9"
    )
    assert str(caught.value.hint).endswith("--columns price=category")
    assert not out.exists()
    dataset = convert(path, out, label="y", max_rejected=0.02, workspace=workspace)
    lines = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert [(line["key"], line["column"], line["value"]) for line in lines] == [
        ("rows.csv#8", "price", "old"),
        ("rows.csv#51", "price", "old"),
    ]
    assert dataset.count() == 98


def test_a_row_with_a_bad_value_of_a_kind_is_rejected(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    path = make_csv("day,a,y", *(f"2024-01-{i % 40:02d},{i},{i % 2}" for i in range(1, 60)))
    with pytest.raises(DataError, match=r"rows.csv#\d+: column 'day': expected a date such as"):
        convert(path, out, label="y", columns={"day": "date"}, workspace=workspace)
    dataset = convert(
        path, out, label="y", columns={"day": "date"}, max_rejected=1, workspace=workspace
    )
    lines = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert {(line["column"], line["value"]) for line in lines} == {
        ("day", f"2024-01-{day:02d}") for day in (*range(32, 40), 0)
    }
    assert dataset.count() + len(lines) == 59


def test_labels_without_training_records_are_named(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    lines = [f"{i},{'train' if i < 20 else 'test'},a|{'b' if i < 20 else 'c'}" for i in range(30)]
    path = make_csv("n,split,y", *lines)
    dataset = convert(path, out, label="y", workspace=workspace)
    assert dataset.labels == ("a", "b", "c")
    assert dataset.manifest.label_counts["test"] == {"a": 10, "b": 0, "c": 10}
    assert "label 'c' has no training records" in summarise(dataset).warnings


def test_labels_in_two_unicode_forms_are_named(
    tmp_path: Path, out: Path, workspace: Workspace
) -> None:
    table = tmp_path / "rows.csv"
    labels = ("caf\u00e9", "cafe\u0301", "tea")
    table.write_text("x,y\n" + "".join(f"{n},{labels[n % 3]}\n" for n in range(60)))
    dataset = convert(table, out, label="y", workspace=workspace)
    (warning,) = [each for each in summarise(dataset).warnings if "Unicode" in each]
    assert "'caf\u00e9'" in warning


def test_words_in_two_unicode_forms_are_named(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    forms = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
    path = make_csv("a,b,y", *(f"{i / 2},{forms[i // 2 % 2]},{i % 2}" for i in range(40)))
    (warning,) = convert(path, out, label="y", workspace=workspace).manifest.source.warnings
    assert warning.startswith(f"two words of column b, {forms[1]!r} and {forms[0]!r}, are alike")


def test_labels_that_are_equal_numbers_are_named(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    labels = ("01", "1", "1.0", "2")
    path = make_csv("a,b,y", *(f"{i / 2},v{i % 2},{labels[i % 4]}" for i in range(80)))
    dataset = convert(path, out, label="y", workspace=workspace)
    assert dataset.labels == ("01", "1", "1.0", "2")
    assert dataset.manifest.source.warnings == (
        "two labels, '01' and '1', are equal numbers: write them alike, or they stay two",
        "two labels, '01' and '1.0', are equal numbers: write them alike, or they stay two",
    )


def test_labels_that_differ_by_case_or_spaces_are_named(
    make_csv: MakeCsv, out: Path, workspace: Workspace
) -> None:
    labels = ("Big cat", "big  cat", "dog", "cat")
    path = make_csv("a,b,y", *(f"{i / 2},v{i % 2},{labels[i % 4]}" for i in range(80)))
    (warning,) = convert(path, out, label="y", workspace=workspace).manifest.source.warnings
    assert warning.startswith("two labels, 'Big cat' and 'big  cat', are alike but for case or ")


def records_of(dataset: Dataset) -> dict[str, str]:
    return {split: repr(list(dataset.examples(split))) for split in SPLITS}  # NaN is not equal


def test_a_dataset_as_a_source_keeps_schema_labels_and_keys(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    images = sorted(make_images(count=10).rglob("*.png"))
    mask = io.BytesIO()
    PillowImage.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).save(mask, "PNG")
    table = pa.table(
        {
            "number": [None if i == 3 else i / 8 for i in range(20)],
            "word": [["NA", "b", None][i % 3] for i in range(20)],
            "text": [None if i == 2 else f"text {i}" for i in range(20)],
            "day": [None if i == 4 else dt.date(2024, 1, 1 + i) for i in range(20)],
            "raw": [b"\xff\x00" if i % 2 else b"plain" for i in range(20)],
            "vector": [[1.0] * (i % 3) for i in range(20)],
            "photos": [f"{images[i]}|{images[0]}" for i in range(20)],
            "mask": [mask.getvalue()] * 20,
            "boxes": ["[[0, 0, 0.5, 1], [0.25, 0, 1, 1, 7]]"] * 19 + ["[]"],
            "any": ['{"a": 1}'] * 20,
            "tags": [["cat"], ["cat", "dog"], [], ["ant"]] * 5,
        }
    )
    types = {
        "number": "number",
        "word": "category",
        "text": "text",
        "day": "date",
        "raw": "bytes",
        "vector": "numbers",
        "photos": "image",
        "mask": "mask",
        "boxes": "boxes",
        "any": "json",
    }
    first = convert(table, tmp_path / "a", label="tags", columns=types, workspace=workspace)
    again = convert(first.uri, tmp_path / "b", compression="gzip", workspace=workspace)
    assert again.manifest.record_schema == first.manifest.record_schema
    assert (again.labels, again.task) == (("ant", "cat", "dog"), "multilabel")
    assert records_of(again) == records_of(first)
    fewer = convert(first.uri, tmp_path / "c", columns={"any": "drop"}, workspace=workspace)
    assert len(fewer.manifest.record_schema.columns) == 9  # type: ignore[union-attr] # a table


def test_images_with_several_labels_are_converted_again(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    images = sorted(make_images(count=10).rglob("*.png"))
    rows = [f"{path},{['p', 'p|q'][i % 2]}" for i, path in enumerate(images)]
    path = tmp_path / "list.csv"
    path.write_text("\n".join(["image_uri,label", *rows]))
    first = convert(path, tmp_path / "a", workspace=workspace)
    again = convert(first.uri, tmp_path / "b", workspace=workspace)
    assert again.task == "multilabel"
    assert (again.digest, again.labels) == (first.digest, ("p", "q"))


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appears_at_the_destination_meanwhile_is_kept(
    make_images: MakeImages, out: Path, workspace: Workspace, overwrite: bool
) -> None:
    source = make_images()
    if overwrite:
        convert(make_images(name="first", count=5), out, workspace=workspace)

    def write(done: int, _: int) -> None:
        out.mkdir(exist_ok=True)
        (out / "thesis.txt").write_text("precious")

    with pytest.raises(AlreadyExistsError, match=r"already exists|thesis\.txt is not part of"):
        convert(source, out, workspace=workspace, overwrite=overwrite, progress=write)
    assert (out / "thesis.txt").read_text() == "precious"
    (out / "thesis.txt").unlink()
    if not overwrite:
        out.rmdir()
    # The shards are kept, and the same command finishes.
    assert convert(source, out, workspace=workspace, overwrite=overwrite).count() == 20


def test_two_conversions_to_one_place(
    make_images: MakeImages, out: Path, workspace: Workspace
) -> None:
    source, other = make_images(), make_images(name="other", count=11)
    nested: list[BaseException | Dataset] = []

    def run_another(done: int, _: int) -> None:
        if not nested:
            nested.append(RuntimeError())
            try:
                nested[0] = convert(other, out, workspace=workspace)
            except TimonelError as error:
                nested[0] = error

    assert convert(source, out, workspace=workspace, progress=run_another).count() == 20
    assert isinstance(nested[0], LockedError)


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_as_destination_is_followed(
    make_images: MakeImages, out: Path, workspace: Workspace, exists: bool
) -> None:
    disk = out.parent / "disk"
    out.parent.mkdir()
    if exists:
        disk.mkdir()
    out.symlink_to(disk)
    convert(make_images(), out, workspace=workspace)
    assert out.is_symlink()
    assert (disk / "manifest.json").is_file()
