"""Whole batch predictions with models of TensorFlow."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import timonel
from tests.data.conftest import MakeImages
from timonel.batch import predict_batch, prediction
from timonel.batch.shards import PredictionJournal
from timonel.data import convert
from timonel.data.examples import decode_example, encode_example
from timonel.data.records import compress, frame, read_records
from timonel.errors import (
    AlreadyExistsError,
    DataError,
    InputError,
    ModelError,
    NotFoundError,
    SpecError,
)
from timonel.models.schema import RowEvidence
from timonel.storage import Workspace
from timonel.tracking import Artifact, lineage, list_runs, start_run


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def focus(workspace: Workspace, ref: Path) -> str | None:
    return lineage(workspace, ref).focus


@pytest.mark.process
def test_images_of_folders(models: Workspace, make_images: MakeImages, png, tmp_path: Path) -> None:
    root = make_images(count=40)
    (root / "dog" / "white.png").write_bytes(png())
    (root / "readme.txt").write_text("not an image")
    seen: list[tuple[int, int]] = []
    done = predict_batch(
        "images",
        root,
        tmp_path / "out.parquet",
        workspace=models,
        progress=lambda *counts: seen.append(counts),
    )
    assert (done.model, done.version, done.rows, done.failed, done.ignored) == (
        "images",
        1,
        81,
        0,
        1,
    )
    assert seen[-1] == (81, 81)
    table = pq.read_table(done.out)
    assert table.column_names == ["key", "label", "scores"]
    assert table.schema.field("scores").type == pa.list_(pa.float32())
    keys = table["key"].to_pylist()
    assert keys == sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    assert table["label"].to_pylist()[keys.index("dog/white.png")] == "dog"
    assert not PredictionJournal.beside(done.out).root.exists()
    assert not list(models.servers.glob("*"))


@pytest.mark.process
def test_predictions_equal_those_of_the_server(
    models: Workspace, make_images: MakeImages, tmp_path: Path
) -> None:
    root = make_images(count=20)
    predict_batch("images", root, tmp_path / "out.jsonl", workspace=models)
    batch = {row["key"]: row["scores"] for row in lines(tmp_path / "out.jsonl")}
    files = sorted(root.rglob("*.png"))
    answers = timonel.predict("images", files, workspace=models)
    for file, answer in zip(files, answers, strict=True):
        assert batch[file.relative_to(root).as_posix()] == answer.outputs["scores"]


def test_rows_of_every_format_give_the_same(models: Workspace, tmp_path: Path) -> None:
    rows = [{"age": i / 2, "name": "x" * (i % 5), "seats": i} for i in range(70)]
    columns = {name: [row[name] for row in rows] for name in ("age", "name", "seats")}
    table = pa.table(columns)
    examples = [encode_example({**row, "seats": float(row["seats"])}) for row in rows]
    records = b"".join(b"".join(frame(example)) for example in examples)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    files = {
        "rows.csv": "\n".join(
            ["age,name,seats", *(f"{r['age']},{r['name']},{r['seats']}" for r in rows)]
        ),
        "rows.jsonl": text,
        "rows.jsonl.gz": gzip.compress(text.encode()),
        "rows.tfrecord": records,
        "rows.tfrecord.gz": compress(records),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=16)
    expected = [2 * row["age"] + len(row["name"]) + row["seats"] for row in rows]
    for name in [*files, "rows.parquet"]:
        out = tmp_path / f"{name}.out.jsonl"
        done = predict_batch("table", tmp_path / name, out, batch_size=32, workspace=models)
        assert done.rows == 70, name
        found = lines(out)
        assert [row["value"] for row in found] == expected, name
        assert [row["key"] for row in found] == [f"{name}#{i + 1}" for i in range(70)]


def test_rows_that_may_depend_on_others_are_computed_alone_unless_asked(
    centred: Path, workspace: Workspace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("1.0\n3.0\n8.0\n")

    def values(**options: int) -> list[float]:
        out = tmp_path / "out.jsonl"
        predict_batch("centred", source, out, workspace=workspace, overwrite=True, **options)
        return [row["y"] for row in lines(out)]

    assert values() == [0, 0, 0]
    assert "computes each row alone" in caplog.text
    caplog.clear()
    assert values(batch_size=3) == [-3, -1, 4]
    evidence = RowEvidence(independent=True, reason="its layers", saved_model="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "read_row_evidence", lambda version: evidence)
        assert values() == [-3, -1, 4]
    assert "alone" not in caplog.text


def test_every_output_format_has_the_same_values(models: Workspace, tmp_path: Path) -> None:
    values = [[i / 8, -i / 3] for i in range(50)]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(value) + "\n" for value in values))
    found = {}
    for ending in ("parquet", "jsonl", "csv", "tfrecord"):
        out = tmp_path / f"out.{ending}"
        predict_batch("doubler", source, out, workspace=models)
        found[ending] = out
    table = pq.read_table(found["parquet"])
    doubled = np.array(table["doubled"].to_pylist(), np.float32)
    np.testing.assert_array_equal(doubled, 2 * np.array(values, np.float32))
    rows = lines(found["jsonl"])
    np.testing.assert_array_equal(np.array([r["doubled"] for r in rows], np.float32), doubled)
    assert [row["text"] for row in rows] == table["text"].to_pylist()
    examples = [decode_example(record) for record in read_records(found["tfrecord"])]
    assert [np.float32(each["doubled"]).tolist() for each in examples] == doubled.tolist()
    assert [each["key"][0].decode() for each in examples] == table["key"].to_pylist()
    import csv

    with found["csv"].open() as file:
        cells = list(csv.DictReader(file))
    assert [row["text"] for row in cells] == table["text"].to_pylist()
    assert [np.float32(json.loads(row["doubled"])).tolist() for row in cells] == doubled.tolist()


def test_a_folder_of_shards(
    models: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.batch.plan._SHARD_BYTES", 200)
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(f"[{i}.0, 0.5]\n" for i in range(100)))
    whole = predict_batch("doubler", source, tmp_path / "whole.jsonl", workspace=models)
    done = predict_batch("doubler", source, tmp_path / "shards", format="jsonl", workspace=models)
    parts = sorted(done.out.iterdir())
    assert len(parts) > 3
    assert parts[0].name == f"part-00000-of-{len(parts):05d}.jsonl"
    assert b"".join(part.read_bytes() for part in parts) == whole.out.read_bytes()
    with pytest.raises(AlreadyExistsError, match="use --overwrite"):
        predict_batch("doubler", source, done.out, workspace=models)
    predict_batch("doubler", source, done.out, workspace=models, overwrite=True)
    assert min(done.out.iterdir()).name.endswith(".parquet")
    (done.out / "mine.txt").write_text("keep")
    with pytest.raises(AlreadyExistsError, match=r"mine.txt is not part of predictions"):
        predict_batch("doubler", source, done.out, workspace=models, overwrite=True)


def test_a_dataset_gives_its_keys_and_true_labels(
    models: Workspace, make_images: MakeImages, tmp_path: Path
) -> None:
    dataset = convert(make_images(count=20), tmp_path / "set", workspace=models)
    done = predict_batch(
        "images", dataset.uri, tmp_path / "o.parquet", split="train", workspace=models
    )
    table = pq.read_table(done.out)
    assert table["key"].to_pylist() == dataset.keys("train")
    assert table["true_label"].to_pylist() == [key.split("/")[0] for key in dataset.keys("train")]
    with pytest.raises(SpecError, match="is a dataset: name its split"):
        predict_batch("images", dataset.uri, tmp_path / "x.parquet", workspace=models)


def test_images_in_json_and_parquet(models: Workspace, png, tmp_path: Path) -> None:
    encoded = base64.b64encode(png()).decode()
    (tmp_path / "a.jsonl").write_text(json.dumps({"b64": encoded}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"id": 7, "image_bytes": {"b64": encoded}}) + "\n")
    pq.write_table(pa.table({"id": [7], "image": [png()]}), tmp_path / "c.parquet")
    for name, options in {
        "a.jsonl": {},
        "b.jsonl": {"key": "id"},
        "c.parquet": {"key": "id"},
    }.items():
        out = tmp_path / f"{name}.out.jsonl"
        predict_batch("images", tmp_path / name, out, workspace=models, **options)
        (row,) = lines(out)
        assert row == {"key": "7" if options else f"{name}#1", "label": "dog", "scores": [0.0, 1.0]}


def test_columns_are_kept(models: Workspace, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"who": ["ann", "bob"], "day": [1, 2], "x": [[1.0, 2.0], [3.0, 4.0]]}),
        tmp_path / "rows.parquet",
    )
    out = tmp_path / "out.parquet"
    predict_batch(
        "doubler", tmp_path / "rows.parquet", out, key="who", keep=["day"], workspace=models
    )
    table = pq.read_table(out)
    assert table.select(["key", "day"]).to_pydict() == {"key": ["ann", "bob"], "day": [1, 2]}
    assert table.schema.field("day").type == pa.int64()
    with pytest.raises(SpecError, match="'text' cannot be kept: the output has another one"):
        predict_batch(
            "doubler",
            tmp_path / "rows.parquet",
            tmp_path / "o.csv",
            keep=["text"],
            workspace=models,
        )


def test_dates_of_a_dataset_are_given_as_those_of_a_table(
    models: Workspace, tmp_path: Path
) -> None:
    import tensorflow as tf

    from timonel.data.preprocess import parse_dates

    table = tmp_path / "sales.csv"
    days = [f"2024-{1 + i % 12:02}-{1 + i % 28:02}T10:20:30" for i in range(40)]
    table.write_text("sold,price\n" + "".join(f"{day},{i}.5\n" for i, day in enumerate(days)))
    dataset = convert(table, tmp_path / "set", label="price", workspace=models)
    module = tf.Module()
    module.run = tf.function(
        lambda sold: {"seconds": parse_dates(sold)},
        input_signature=[tf.TensorSpec([None], tf.string, name="sold")],
    )
    signatures = {"serving_default": module.run}
    tf.saved_model.save(module, str(models.models / "dated" / "1"), signatures=signatures)

    def seconds(source: object, name: str, **options: str) -> set[int]:
        done = predict_batch("dated", source, tmp_path / name, workspace=models, **options)
        assert (done.failed, done.rows) == (0, len(lines(done.out)))
        return {row["seconds"] for row in lines(done.out)}

    found = seconds(dataset.uri, "set.jsonl", split="train")
    assert found
    assert found < seconds(table, "table.jsonl")


def test_only_the_bad_rows_fail(models: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    bad = {3: "-1", 40: '"text"', 41: "{", 90: "null"}
    source.write_text("".join(f"{bad.get(i, float(i * i))}\n" for i in range(100)))
    out = tmp_path / "out.jsonl"
    done = predict_batch("picky", source, out, max_errors=0.05, batch_size=32, workspace=models)
    assert (done.rows, done.failed, done.errors) == (96, 4, tmp_path / "out.jsonl.errors.jsonl")
    assert [row["y"] for row in lines(out)] == [float(i) for i in range(100) if i not in bad]
    errors = {row["key"]: row["error"] for row in lines(done.errors)}
    assert errors.keys() == {f"rows.jsonl#{i + 1}" for i in bad}
    assert "negative" in errors["rows.jsonl#4"]
    assert "text" in errors["rows.jsonl#41"]
    with pytest.raises(
        DataError, match=r"4 of 100 rows without a prediction, above the limit of 1.00%"
    ):
        predict_batch("picky", source, tmp_path / "b.jsonl", workspace=models)
    assert not (tmp_path / "b.jsonl").exists()
    assert len(lines(tmp_path / "b.jsonl.errors.jsonl")) == 4


def test_rows_that_are_no_rows_fail_alone(models: Workspace, tmp_path: Path) -> None:
    good = [f"{i},name,{i}" for i in range(10)]
    table = ["age,name,seats", *good[:4], "1,two", "", '"1","long\nname",3', "1,2,3,4", *good[4:]]
    (tmp_path / "rows.csv").write_text("\n".join(table) + "\n")
    options = {"workspace": models, "max_errors": 0.5, "batch_size": 4}
    done = predict_batch("table", tmp_path / "rows.csv", tmp_path / "o.jsonl", **options)
    keys = [row["key"] for row in lines(done.out)]
    assert keys == [f"rows.csv#{number}" for number in (1, 2, 3, 4, 6, *range(8, 14))]
    assert [row["value"] for row in lines(done.out)][5:] == [4.0 + i * 3 for i in range(4, 10)]
    assert lines(done.errors) == [
        {"key": "rows.csv#5", "error": "rows.csv line 6: expected 3 values, got 2"},
        {"key": "rows.csv#7", "error": "rows.csv line 10: expected 3 values, got 4"},
    ]
    content = b'no\n{"x": [1, 2]}\n\xff\n' + b"[3, 4]\n" * 3 + b"[" * 100_000 + b"\n"
    (tmp_path / "rows.jsonl").write_bytes(content)
    done = predict_batch("doubler", tmp_path / "rows.jsonl", tmp_path / "p.jsonl", **options)
    assert [row["doubled"][0] for row in lines(done.out)] == [2.0, 6.0, 6.0, 6.0]
    assert [(row["key"], row["error"].partition(":")[0]) for row in lines(done.errors)] == [
        ("rows.jsonl#1", "not JSON"),
        ("rows.jsonl#3", "not JSON"),
        ("rows.jsonl#7", "not JSON"),
    ]


def test_records_with_a_wrong_checksum_fail_alone(models: Workspace, tmp_path: Path) -> None:
    records = [b"".join(frame(encode_example({"x": [1.0 * i, 2.0]}))) for i in range(4)]
    records[1] = records[1][:-1] + bytes([records[1][-1] ^ 1])
    for name, content in {
        "a.tfrecord": b"".join(records),
        "z": compress(b"".join(records)),
    }.items():
        source, out = tmp_path / name, tmp_path / f"{name}.jsonl"
        source.write_bytes(content)  # compressed files are recognised without an ending
        done = predict_batch(
            "doubler", source, out, input_format="tfrecord", max_errors=0.5, workspace=models
        )
        assert [row["doubled"][0] for row in lines(out)] == [0.0, 4.0, 6.0]
        assert lines(done.errors) == [{"key": f"{name}#2", "error": "a wrong checksum"}]


def test_rows_without_a_key_fail_alone(models: Workspace, tmp_path: Path) -> None:
    rows = [{"id": f"k{i}", "x": [1.0 * i, 2.0]} for i in range(4)]
    del rows[0]["id"]
    rows[2]["id"] = None
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows[1:] + rows[:1]).slice(0), tmp_path / "b.parquet")
    examples = [{name: v for name, v in row.items() if v is not None} for row in rows]
    records = b"".join(b"".join(frame(encode_example(row))) for row in examples)
    (tmp_path / "c.tfrecord").write_bytes(records)
    for name, wrong in {"a.jsonl": (1, 3), "b.parquet": (2, 4), "c.tfrecord": (1, 3)}.items():
        out = tmp_path / f"{name}.out.jsonl"
        done = predict_batch(
            "doubler", tmp_path / name, out, key="id", max_errors=0.5, workspace=models
        )
        assert [row["key"] for row in lines(out)] == ["k1", "k3"], name
        assert [row["doubled"][0] for row in lines(out)] == [2.0, 6.0], name
        reason = "no value for id"
        assert lines(done.errors) == [{"key": f"{name}#{n}", "error": reason} for n in wrong]
    (tmp_path / "d.csv").write_text("id,age,name,seats\nk,1,x,1\n,2,x,1\n")
    done = predict_batch(
        "table",
        tmp_path / "d.csv",
        tmp_path / "d.jsonl",
        key="id",
        max_errors=0.5,
        workspace=models,
    )
    assert [row["key"] for row in lines(done.out)] == ["k"]
    assert lines(done.errors) == [{"key": "d.csv#2", "error": "no value for id"}]


def test_names_that_a_row_lacks_are_missing_values(models: Workspace, tmp_path: Path) -> None:
    rows = [{"age": 1, "seats": 2, "name": "n"}, {"age": 1, "seats": 2}, {"seats": 2}, {"x": 1}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "o.jsonl"
    done = predict_batch("table", path, out, keep=["name"], max_errors=0.5, workspace=models)
    assert [row["name"] for row in lines(out)] == ["n", "", ""]
    assert [row["key"] for row in lines(done.errors)] == ["a.jsonl#4"]
    assert lines(done.errors)[0]["error"].startswith("no value for ")


def test_every_file_must_have_the_columns(models: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"id": 1, "x": [1, 2]}\n')
    (folder / "b.jsonl").write_text('{"x": [1, 2]}\n')
    (folder / "c.jsonl").write_text("")
    options = {"workspace": models}
    with pytest.raises(InputError, match=r"b.jsonl lacks id: its columns are x"):
        predict_batch("doubler", folder, tmp_path / "o.jsonl", key="id", **options)
    done = predict_batch("doubler", folder, tmp_path / "o.jsonl", **options)
    assert done.rows == 2


def test_lists_of_images(
    models: Workspace, png, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.batch.plan._SHARD_IMAGES", 2)
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(png(number % 2))
    (folder / "no.png").write_text("no image")
    names = ["0.png", str(folder / "1.png"), "2.png", "no.png", "none.png", ""]
    rows = [{"image_uri": name, "label": "x"} for name in names]
    header = "split,image_uri,label\n"
    text = "".join(f"TRAIN,{name},x\n" for name in names)
    (folder / "a.csv").write_text(header + text)
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "c.parquet")
    (folder / "d.csv").write_text(text)  # without a header, as in TFRecorder
    for name in ("a.csv", "b.jsonl", "c.parquet", "d.csv"):
        out = tmp_path / f"{name}.out"
        done = predict_batch(
            "images", folder / name, out, format="jsonl", max_errors=0.9, workspace=models
        )
        found = [row for part in sorted(out.glob("part-*")) for row in lines(part)]
        assert [row["label"] for row in found] == ["cat", "dog", "cat"], name
        assert [row["key"] for row in found] == [f"{name}#{i}" for i in (1, 2, 3)]
        reasons = [row["error"] for row in lines(done.errors)]
        assert reasons[0] == "not a JPEG, PNG, GIF, BMP or WebP image"
        assert reasons[1] == "cannot read none.png: No such file or directory"
        assert reasons[2].startswith("no value for image")


def test_the_lineage_has_the_images_that_were_read(
    models: Workspace, png, tmp_path: Path, make_images: MakeImages
) -> None:
    root = make_images(count=20)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in root.rglob("*.png"))
    rows = "".join(f"{name},{name.split('/')[1]}\n" for name in names)
    (tmp_path / "list.csv").write_text(f"image_uri,label\n{rows}")
    seen = []
    for number in range(2):
        for source in (root, tmp_path / "list.csv"):
            converted = convert(source, tmp_path / f"{source.name}-set{number}", workspace=models)
            out = tmp_path / f"{source.name}{number}.jsonl"
            predict_batch("images", source, out, workspace=models)
            after, before = list_runs(models)[:2]
            digest = converted.manifest.source.digest
            assert [run.inputs[i].digest for run, i in ((before, 0), (after, 1))] == [digest] * 2
            seen.append(digest)
        assert focus(models, root / "cat" / "000.png") == focus(models, root)
        (root / "cat" / "000.png").write_bytes(png())
    assert len({*seen}) == 4, "the changed image was not seen"
    for number, state in ((0, "changed"), (1, "present")):
        graph = lineage(models, tmp_path / f"list.csv{number}.jsonl", direction="upstream")
        states = {each.artifact.digest: each.state for each in graph.artifacts}
        assert states[seen[2 * number + 1]] == state


def test_the_folder_of_listed_images_leads_to_the_predictions(
    models: Workspace, png, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(png())
    (tmp_path / "list.csv").write_text("image_uri\nphotos/a.png\nnone.png\n")
    predict_batch(
        *("images", tmp_path / "list.csv", tmp_path / "out.jsonl"), max_errors=0.5, workspace=models
    )
    graph = lineage(models, tmp_path / "photos" / "a.png", direction="downstream")
    assert [each.artifact.label for each in graph.artifacts] == ["photos", "out.jsonl"]
    with pytest.raises(NotFoundError):
        lineage(models, png_elsewhere := tmp_path / "a.png")
    assert not png_elsewhere.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": "32"}, "expected batch_size= as a whole number or None, got '32'"),
        ({"max_errors": "1"}, "expected max_errors= as a finite number, got '1'"),
        ({"keep": "abc"}, "expected keep= as a list, got 'abc'"),
        ({"inputs": [7]}, r"expected inputs= as text or a path or a list, got \[7\]"),
        ({"out": None}, "expected out= as text or a path, got None"),
        ({"progress": True}, "expected progress= as a function or None, got True"),
        ({"keys": "id"}, r"predict_batch\(\) has no argument 'keys': did you mean"),
    ],
)
def test_arguments_of_wrong_types(options: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        predict_batch(**{"model": "m", "inputs": "a.csv", "out": "b.csv", **options})


@pytest.mark.parametrize(
    ("inputs", "out"),
    [
        ("in/rows.jsonl", "in/rows.jsonl"),
        ("in", "in/rows.csv"),
        ("in/*.jsonl", "in/out.jsonl"),
        ("in/rows.jsonl", "in"),
    ],
)
def test_an_output_does_not_replace_its_input(
    models: Workspace, tmp_path: Path, inputs: str, out: str
) -> None:
    rows = tmp_path / "in" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_text("1.0\n")
    with pytest.raises(InputError, match=r"overlaps with the input .*: choose a path outside"):
        predict_batch(
            "doubler", tmp_path / inputs, tmp_path / out, overwrite=True, workspace=models
        )
    assert rows.read_text() == "1.0\n"


def test_other_lists_of_errors_stay(models: Workspace, tmp_path: Path) -> None:
    source, other = tmp_path / "rows.jsonl", tmp_path / "mine.errors.jsonl"
    source.write_text("[1.0, 2.0]\n")
    other.write_text("mine")
    predict_batch("doubler", source, tmp_path / "mine.csv", workspace=models)
    assert other.read_text() == "mine"


@pytest.mark.parametrize("out", ["o.csv", "folder"])
def test_what_appears_at_the_output_meanwhile_is_kept(
    models: Workspace, tmp_path: Path, out: str
) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / out
    source.write_text("[1.0, 2.0]\n")
    mine = target if target.suffix else target / "mine.txt"

    def write(done: int, _: int) -> None:
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("precious")

    with pytest.raises(AlreadyExistsError, match="already exists"):
        predict_batch(
            "doubler",
            source,
            target,
            format=None if target.suffix else "csv",
            workspace=models,
            progress=write,
        )
    assert mine.read_text() == "precious"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.tfrecord"])
def test_input_that_shrinks_meanwhile_loses_no_rows_silently(
    models: Workspace, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"age": i / 2, "name": "x", "seats": 1.0} for i in range(70)]
    source = tmp_path / name
    parts = [
        f"{json.dumps(row)}\n".encode()
        if name == "rows.jsonl"
        else b"".join(frame(encode_example(row)))
        for row in rows
    ]
    source.write_bytes(b"".join(parts))
    plan = prediction.plan_shards

    def shrink(*args: Any, **options: Any) -> object:
        found = plan(*args, **options)
        source.write_bytes(b"".join(parts[:50]))
        return found

    monkeypatch.setattr(prediction, "plan_shards", shrink)
    with pytest.raises(DataError, match=r"changed|truncated|cut off"):
        predict_batch("table", source, tmp_path / "o.csv", workspace=models)
    assert not (tmp_path / "o.csv").exists()


def test_without_any_prediction_nothing_is_written(models: Workspace, tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "o.parquet"
    source.write_text("-1.0\n-2.0\n")
    with pytest.raises(DataError, match="2 of 2 rows without a prediction, so there is nothing"):
        predict_batch("picky", source, out, max_errors=1.0, workspace=models)
    assert not out.exists()


def test_a_batch_that_needs_too_much_memory_is_divided(models: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(f"{float(i * i)}\n" for i in range(200)))
    done = predict_batch("picky", source, tmp_path / "o.jsonl", batch_size=200, workspace=models)
    assert (done.rows, done.failed) == (200, 0)
    assert [row["y"] for row in lines(done.out)] == [float(i) for i in range(200)]


def test_broken_images_are_listed(
    models: Workspace, make_images: MakeImages, tmp_path: Path
) -> None:
    root = make_images(count=50)
    whole = (root / "cat" / "000.png").read_bytes()
    (root / "cat" / "000.png").write_bytes(whole[:40])
    (root / "dog" / "000.png").write_bytes(b"")
    done = predict_batch("images", root, tmp_path / "o.csv", workspace=models, max_errors=0.02)
    assert (done.rows, done.failed) == (98, 2)
    errors = lines(done.errors)
    assert [row["key"] for row in errors] == ["cat/000.png", "dog/000.png"]
    assert errors[1]["error"] == "an empty file"


@pytest.mark.parametrize(
    ("model", "file", "options", "error", "message"),
    [
        (
            "table",
            ("a.csv", "age,name\n1,x\n"),
            {},
            InputError,
            r"a.csv lacks seats: its columns are age, name; the model takes age, name, seats",
        ),
        (
            "table",
            ("a.csv", "age,name,seats\n1,x,2\n"),
            {"key": "id"},
            InputError,
            "a.csv lacks id",
        ),
        ("doubler", ("a.jsonl", '{"x": [1, 2]}\n'), {"key": "id"}, InputError, "jsonl lacks id"),
        (
            "table",
            ("a.png", "x"),
            {},
            InputError,
            "the model takes age, name, seats, got image files",
        ),
        ("table", ("a.jsonl", "[1]\n"), {}, InputError, "rows of .*a.jsonl have no names"),
        ("table", ("a.jsonl", "{\n"), {}, DataError, "first lines of .*a.jsonl are not JSON"),
        ("table", ("a.parquet", "no"), {}, DataError, "a.parquet is not a valid Parquet file"),
        ("images", ("a.tfrecord", "no"), {}, DataError, "truncated|no records"),
        ("table", ("a.csv", "age,name,seats\n"), {}, DataError, "found no rows"),
        (
            "images",
            ("a.xyz", "no"),
            {},
            DataError,
            "found 1 file of unknown type|nothing to predict",
        ),
        ("nope", ("a.png", "x"), {}, NotFoundError, "no model 'nope'"),
        ("images", ("a.png", "x"), {"version": 7}, NotFoundError, "images has no version 7"),
        ("images", ("a.png", "x"), {"signature": "no"}, InputError, "no signature no with inputs"),
        ("images", ("a.png", "x"), {"key": "id"}, SpecError, "image files have no column 'id'"),
        ("images", ("a.png", "x"), {"split": "test"}, SpecError, "is no dataset"),
        ("images", ("a.png", "x"), {"batch_size": 0}, SpecError, "must be positive"),
        ("images", ("a.png", "x"), {"max_errors": 2}, SpecError, "from 0 to 1"),
        ("http://h:1", ("a.png", "x"), {}, SpecError, "does not use the server"),
    ],
)
def test_wrong_input_is_one_line_before_anything_runs(
    models: Workspace, tmp_path: Path, model, file, options, error, message
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / file[0]).write_text(file[1])
    with pytest.raises(error, match=message):
        predict_batch(model, folder, tmp_path / "out.jsonl", workspace=models, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "workspace"]


def test_the_version_is_fixed_at_the_start(
    models: Workspace, exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.serving.conftest import publish

    (models.models / "v").mkdir()
    publish(exports / "versioned-1", models.models / "v", 1)
    monkeypatch.setattr("timonel.batch.plan._SHARD_BYTES", 64)
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f"{float(i)}\n" for i in range(100)))
    stop = threading.Event()

    def interrupt(done: int, _total: int) -> None:
        if done > 30 and not stop.is_set():
            stop.set()
            raise KeyboardInterrupt

    monkeypatch.setattr("timonel.data.progress.INTERVAL_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        predict_batch("v", source, out, workspace=models, progress=interrupt)
    assert PredictionJournal.beside(out).has_finished()
    publish(exports / "versioned-2", models.models / "v", 2)
    done = predict_batch("v", source, out, workspace=models)
    assert done.version == 1
    assert [row["y"] for row in lines(out)] == [float(i) for i in range(100)]
    done = predict_batch("v", source, out, workspace=models, overwrite=True)
    assert done.version == 2
    assert [row["y"] for row in lines(out)] == [2.0 * i for i in range(100)]


def test_a_full_disk_is_one_line_and_nothing_is_lost(
    models: Workspace, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.batch.plan._SHARD_BYTES", 2000)
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(f"[{i}.0, 0.5]\n" for i in range(2000)))
    out = small_disk / "out.jsonl"
    with pytest.raises(InputError, match=r"cannot write .*: No space left on device"):
        predict_batch("doubler", source, out, workspace=models)
    assert not out.exists()
    assert not list(small_disk.glob(".tmp-[0-9]*"))


def test_a_model_that_is_none(models: Workspace, make_images: MakeImages, tmp_path: Path) -> None:
    (models.models / "images" / "1" / "saved_model.pb").write_bytes(b"no model")
    with pytest.raises((ModelError, InputError)):
        predict_batch("images", make_images(), tmp_path / "o.csv", workspace=models)
    assert not (tmp_path / "o.csv").exists()


def test_the_model_of_a_run(models: Workspace, exports: Path, tmp_path: Path) -> None:
    shutil.copytree(exports / "doubler", tmp_path / "export" / "saved_model")
    with start_run(models, "train") as run:
        run.output(Artifact("savedmodel", tmp_path / "export" / "saved_model"))
    (tmp_path / "rows.jsonl").write_text("[1.0, 2.0]\n")
    out = tmp_path / "o.jsonl"
    done = predict_batch(run.run_id, tmp_path / "rows.jsonl", out, workspace=models)
    assert (done.model, done.version) == (run.run_id, 1)
    assert lines(out)[0]["doubled"] == [2.0, 4.0]
