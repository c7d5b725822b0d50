"""Event files of a script: recorded folders, names, and values written in time."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from timonel.storage import find_workspace
from timonel.tracking import RunWriter, start_run
from timonel.tracking.events import FILE_NAME, read_events
from timonel.training.worker.reports.summaries import recorded_summaries


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    return start_run(find_workspace(tmp_path / "workspace"), "train")


def folders(run: RunWriter) -> list[str]:
    events, _ = read_events(run.folder / FILE_NAME)
    return [event["folder"] for event in events if event["type"] == "summaries"]


def tags(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.glob("*tfevents*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            found += [value.tag for value in event.summary.value]
    return found


def test_values_are_written_at_once(
    run: RunWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    original = tf.summary.create_file_writer
    with recorded_summaries(run):
        writer = tf.summary.create_file_writer("logs")
        again = tf.summary.create_file_writer(tf.constant("logs"), filename_suffix=".mine")
        other = tf.compat.v2.summary.create_file_writer(str(tmp_path / "other"))
        for number, each in enumerate((writer, again, other)):
            with each.as_default():
                tf.summary.scalar(f"loss{number}", 0.5, step=0)
                # TensorFlow itself writes at most at the end of the block.
                assert f"loss{number}" in tags(tmp_path / ("other" if number == 2 else "logs"))
    assert folders(run) == [str(tmp_path / "logs"), str(tmp_path / "other")]
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert [name.partition(run.run_id)[2] for name in names] == [".v2", ".mine"]
    assert tf.summary.create_file_writer is original


def test_values_of_a_writer_that_the_script_drops_are_written_at_the_end(
    run: RunWriter, tmp_path: Path
) -> None:
    def write() -> None:
        with tf.Graph().as_default():
            writer = tf.compat.v1.summary.FileWriter(str(tmp_path / "logs"), max_queue=5000)
        for step in range(3000):
            value = tf.compat.v1.Summary.Value(tag=f"loss{step}", simple_value=0.5)
            writer.add_summary(tf.compat.v1.Summary(value=[value]), step)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # the thread that writes values waits for this one
    try:
        with recorded_summaries(run):
            write()
    finally:
        sys.setswitchinterval(interval)
    shutil.copytree(tmp_path / "logs", tmp_path / "then")  # a thread goes on writing
    assert tags(tmp_path / "then") == [f"loss{step}" for step in range(3000)]


def test_values_that_the_script_holds_back_are_written_at_the_end(
    run: RunWriter, tmp_path: Path
) -> None:
    # The block of the default writer ends later, or never: `set_as_default` has none.
    with contextlib.ExitStack() as stack:
        with recorded_summaries(run):
            writer = tf.summary.create_file_writer(str(tmp_path), 100, 10**6)
            closed = tf.summary.create_file_writer(str(tmp_path))
            closed.close()
            stack.enter_context(writer.as_default())
            tf.summary.scalar("loss", 0.5, step=0)
            assert tags(tmp_path) == []
        assert tags(tmp_path) == ["loss"]


def test_writers_of_tensorflow_1(run: RunWriter, tmp_path: Path) -> None:
    summary = tf.compat.v1.Summary(value=[{"tag": "loss", "simple_value": 0.5}])
    with recorded_summaries(run), tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(str(tmp_path), None, 10, 10**6)
        writer.add_summary(summary, 1)
        closed = tf.compat.v1.summary.FileWriter(str(tmp_path / "closed"))
        closed.close()
    assert tags(tmp_path) == ["loss"]
    assert all(run.run_id in path.name for path in tmp_path.glob("*tfevents*"))
    assert folders(run) == [str(tmp_path), str(tmp_path / "closed")]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in Keras
def test_keras_callback(run: RunWriter, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = tf.zeros((4, 1))
    callback = keras.callbacks.TensorBoard(str(tmp_path / "logs"))
    with recorded_summaries(run):
        model.fit(x, x, validation_data=(x, x), callbacks=[callback], verbose=0)
    logs = tmp_path / "logs"
    assert set(folders(run)) == {str(logs / "train"), str(logs / "validation")}
    assert "epoch_loss" in tags(logs / "validation")


def test_other_tasks_than_the_chief_record_nothing(run: RunWriter, tmp_path: Path) -> None:
    with recorded_summaries(None):
        writer: Any = tf.summary.create_file_writer(str(tmp_path / "logs"))
        with writer.as_default():
            tf.summary.scalar("loss", 0.5, step=0)
    assert folders(run) == []
    assert tags(tmp_path / "logs") == ["loss"]
    assert not list((tmp_path / "logs").glob(f"*{run.run_id}*"))
