"""Scalars of event files that TensorFlow wrote, and of the file of cloudml-hypertune."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from timonel.data.records import frame
from timonel.tuning.tensorboard import HYPERTUNE, ScalarReader

RUN = "train-20261120-181530-7f3a"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def writer(folder: Path, suffix: str = f".{RUN}.v2") -> Any:
    return tf.summary.create_file_writer(str(folder), flush_millis=0, filename_suffix=suffix)


def write(to: Any, tag: str, *values: float, first: int = 0) -> None:
    with to.as_default():
        for step, value in enumerate(values, first):
            tf.summary.scalar(tag, value, step=step)


def read(reader: ScalarReader, **options: Any) -> list[tuple[str, int, float]]:
    return [(each.tag, each.step, each.value) for each in reader.read(**options)]


def test_scalars_of_all_kinds(tmp_path: Path) -> None:
    with writer(tmp_path / "logs").as_default():
        tf.summary.scalar("float", 0.5, step=1)
        for kind in (tf.float64, tf.float16, tf.bfloat16, tf.int64):
            tf.summary.write(kind.name, tf.constant(3, kind), step=2)
        tf.summary.scalar("nan", math.nan, step=3)
        tf.summary.write("vector", tf.constant([1.0, 2.0]), step=3)
        tf.summary.text("text", "words", step=3)
        tf.summary.histogram("histogram", [1.0, 2.0], step=3)
        tf.summary.image("image", tf.zeros((1, 4, 4, 3)), step=3)
    *found, nan = read(ScalarReader(tmp_path, RUN))
    assert found[0] == ("float", 1, 0.5)
    assert {("float64", 2, 3.0), ("float16", 2, 3.0), ("int64", 2, 3.0)} <= set(found)
    assert {tag for tag, _, _ in found} <= {"float", "float64", "float16", "bfloat16", "int64"}
    assert nan[:2] == ("nan", 3)
    assert math.isnan(nan[2])


def test_summaries_of_tensorflow_1(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        value = tf.compat.v1.placeholder(tf.float32, ())
        summary = tf.compat.v1.summary.scalar("accuracy", value)
        with tf.compat.v1.summary.FileWriter(str(tmp_path), session.graph) as file:
            for step in (10, 20):
                file.add_summary(session.run(summary, {value: step / 32}), step)
    assert read(ScalarReader(tmp_path, RUN)) == [("accuracy", 10, 0.3125), ("accuracy", 20, 0.625)]


def test_new_values_are_read_once(tmp_path: Path) -> None:
    clock = Clock()
    reader = ScalarReader(tmp_path / "job", RUN, clock=clock)
    assert read(reader) == []
    logs = writer(tmp_path / "job" / "logs")
    write(logs, "loss", 3.0, 2.0)
    assert read(reader) == [], "the folder was searched at this moment"
    assert len(read(reader, search=True)) == 2
    write(logs, "loss", 1.0, first=2)
    assert read(reader) == [("loss", 2, 1.0)]
    write(writer(tmp_path / "job" / "more"), "loss", 5.0)
    assert read(reader) == []
    clock.now += 2
    assert read(reader) == [("loss", 0, 5.0)]


def test_recorded_folders_are_shared_with_other_runs(tmp_path: Path) -> None:
    write(writer(tmp_path, ".v2"), "loss", 1.0)  # from before the run
    write(writer(tmp_path, ".train-20261120-181530-0000.v2"), "loss", 2.0)  # of a parallel trial
    reader = ScalarReader(tmp_path / "job", RUN)
    reader.add_folder(tmp_path)
    reader.add_folder(tmp_path / "not-yet")
    assert read(reader) == []
    write(writer(tmp_path), "loss", 3.0)
    write(writer(tmp_path / "not-yet"), "loss", 4.0)
    assert sorted(read(reader)) == [("loss", 0, 3.0), ("loss", 0, 4.0)]


def test_the_preferred_source_is_the_greatest(tmp_path: Path) -> None:
    job = tmp_path / "job"
    folders = {
        "timonel": job / "tensorboard" / "validation",
        "of another task": job / "logs",
        "train": tmp_path / "logs" / "train",
        "validation": tmp_path / "logs" / "validation",
    }
    for value, (name, folder) in enumerate(folders.items()):
        suffix = ".v2" if name == "of another task" else f".{RUN}.v2"
        write(writer(folder, suffix), "epoch_loss", value)
    (job / HYPERTUNE).parent.mkdir()
    entry = {"timestamp": 1.0, "trial": "0", "epoch_loss": "9.0", "global_step": "0"}
    (job / HYPERTUNE).write_text(json.dumps(entry))
    reader = ScalarReader(job, RUN)
    for name in ("train", "validation"):
        reader.add_folder(folders[name])
    found = sorted(reader.read(), key=lambda each: each.source)
    assert [each.value for each in found] == [0, 1, 2, 3, 9]


def test_a_record_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    write(writer(tmp_path / "source"), "loss", 1.0, 2.0)
    (source,) = (tmp_path / "source").iterdir()
    content = source.read_bytes()
    job = tmp_path / "job"
    job.mkdir()
    growing = job / source.name
    reader = ScalarReader(job, RUN)
    growing.write_bytes(content[:-1])
    assert read(reader) == [("loss", 0, 1.0)]
    assert read(reader) == []
    growing.write_bytes(content)
    assert read(reader) == [("loss", 1, 2.0)]
    assert reader.problems == {}


@pytest.mark.parametrize("fault", ["checksum", "message"])
def test_a_corrupt_file_is_reported(tmp_path: Path, fault: str) -> None:
    write(writer(tmp_path), "loss", 1.0)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    end = b"x" * 12 if fault == "checksum" else b"".join(frame(b"no event"))
    path.write_bytes(content + end)
    reader = ScalarReader(tmp_path, RUN)
    assert read(reader) == [("loss", 0, 1.0)]
    assert read(reader) == []
    (problem,) = reader.problems.values()
    assert path.name in problem


def test_a_deleted_file_keeps_its_values(tmp_path: Path) -> None:
    write(writer(tmp_path), "loss", 1.0)
    reader = ScalarReader(tmp_path, RUN)
    assert len(read(reader)) == 1
    for path in tmp_path.iterdir():
        path.unlink()
    assert read(reader) == []
    assert reader.problems == {}


def test_hypertune_rewrites_its_file(tmp_path: Path) -> None:
    path = tmp_path / HYPERTUNE
    path.parent.mkdir()

    def line(moment: float, value: object) -> str:
        entry = {"timestamp": moment, "trial": "0", "auc": value, "global_step": str(int(moment))}
        return json.dumps({**entry, "checkpoint_path": ""}) + "\n"

    path.write_text(line(1.5, "0.5") + line(2.5, "0.75")[:-9])
    reader = ScalarReader(tmp_path, RUN)
    assert read(reader) == [("auc", 1, 0.5)]
    path.write_text(line(1.5, "0.5") + line(2.5, "0.75"))
    assert read(reader) == [("auc", 2, 0.75)]
    path.write_text(line(3.5, "nan") + "null\n")  # after a restart
    (found,) = read(reader)
    assert found[:2] == ("auc", 3)
    assert math.isnan(found[2])
