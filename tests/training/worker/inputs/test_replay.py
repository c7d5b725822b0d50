"""Functions of ``Dataset.map`` are replayed on raw input where that gives the model's input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from timonel.data import Dataset, convert, load, load_registry
from timonel.training.worker.inputs import replay as module
from timonel.training.worker.inputs.replay import NotReplayableError
from timonel.training.worker.private import tf_data


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    load_registry.reset()


def replay_of(dataset: Any) -> Any:
    chain = tf_data.maps_of(dataset)
    return None if chain is None or not chain[1] else module.replay_of(*chain)


@pytest.fixture
def columns(tmp_path: Path) -> Any:
    rows = [f"{n * 7 % 23},{n * 5 % 11},some text {n},{'ab'[n % 2]}" for n in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["size,other,note,answer", *rows]) + "\n")
    table = convert(tmp_path / "rows.csv", tmp_path / "t", label="answer", columns={"note": "text"})
    return load(table.uri, batch_size=8, features="columns")


def test_a_single_column_is_all_that_clients_send(columns: Any) -> None:
    replay = replay_of(columns.map(lambda x, y: (x["note"], y)).prefetch(1))
    assert replay is not None
    assert replay.used == {"note"}
    assert replay.inputs({"note": tf.constant(["a", "b", "c"])}).numpy().tolist() == [
        b"a", b"b", b"c",
    ]  # fmt: skip


def test_several_functions_and_their_tables(columns: Any) -> None:
    words = keras.layers.StringLookup(vocabulary=["some", "text"])

    def split(x: Any, y: Any) -> Any:
        return {"length": tf.strings.length(x["note"]), "size": x["size"] * 2, "note": x["note"]}, y

    mapped = columns.map(split).map(lambda x, y: ((x["length"], x["size"], words(x["note"])), y))
    replay = replay_of(mapped)
    assert replay is not None
    assert replay.used == {"note", "size"}
    raw = {"note": tf.constant(["text", "x"]), "size": tf.constant([[1.0], [2.0]])}
    length, size, word = replay.inputs(raw)
    assert (length.numpy().tolist(), word.numpy().tolist()) == ([4, 1], [2, 0])
    np.testing.assert_allclose(size, [[2.0], [4.0]])


def test_an_input_as_its_own_target(columns: Any) -> None:
    replay = replay_of(columns.map(lambda x, _: (x["size"], x["size"])))
    assert replay is not None
    x, y = replay.mapped(*next(iter(columns)))
    np.testing.assert_allclose(x, y)
    assert replay.inputs({"size": tf.ones([1, 1])}).shape == (1, 1)


def test_pixels_are_prepared_as_in_training(dataset: Dataset) -> None:
    images = load(dataset.uri, batch_size=8)
    replay = replay_of(images.map(lambda x, y: (x * 2 - 1, y)))
    assert replay is not None
    assert replay.used is None
    np.testing.assert_allclose(replay.inputs(tf.ones([1, 8, 8, 1])), tf.ones([1, 8, 8, 1]))


def test_nothing_to_replay(dataset: Dataset, columns: Any) -> None:
    assert replay_of(columns) is None
    assert replay_of(tf.data.Dataset.range(3).map(lambda x: x + 1)) is None
    assert replay_of(columns.unbatch().map(lambda x, y: (x["size"], y)).batch(2)) is None
    images = load(dataset.uri, batch_size=8)
    assert replay_of(images.map(lambda x, y: (tf.image.random_flip_left_right(x), y))) is None


def test_inputs_from_labels_or_python_cannot_be_replayed(columns: Any) -> None:
    with pytest.raises(NotReplayableError, match="from the labels"):
        replay_of(columns.map(lambda x, y: (x["size"] + tf.cast(y, tf.float32)[:, None], y)))

    def doubled(x: Any, y: Any) -> Any:
        return tf.numpy_function(lambda size: size * 2, [x["size"]], tf.float32), y

    with pytest.raises(NotReplayableError, match="Python code"):
        replay_of(columns.map(doubled))
