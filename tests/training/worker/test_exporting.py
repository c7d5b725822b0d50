from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from timonel.data import load_registry
from timonel.data.load_registry import InputShard, LoadRecord
from timonel.data.preprocessing import table_preprocessing
from timonel.data.schema import BytesColumn, DateColumn, NumericColumn, TableSchema, TextColumn
from timonel.models.exports import read_export

pytest.importorskip("tensorflow")

import keras
import numpy as np
import tensorflow as tf

from timonel.training.worker.exporting import _as_input, _columns, _row, _transform, export_own


@pytest.fixture(autouse=True)
def new_session() -> Iterator[None]:
    load_registry.reset()
    yield
    load_registry.reset()


def test_a_model_with_inputs_that_no_client_can_send_takes_tensors(tmp_path: Path) -> None:
    schema = TableSchema(label="y", columns=(BytesColumn(name="note", longest=5),))
    load_registry.loads.append(
        LoadRecord(
            uri=str(tmp_path),
            digest="sha256:0",
            split="train",
            batch_size=1,
            records=1,
            steps=1,
            preprocessing=table_preprocessing(schema, "columns"),
            task="classification",
            labels=("a", "b"),
            label_mode="int",
            image_size=None,
            shuffle=False,
            seed=0,
            shard=InputShard(),
        )
    )
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    export_own(tmp_path / "export", model, None)
    export = read_export(tmp_path / "export")
    assert export.preparation.input_kind == "tensor"
    assert "but column 'note' is bytes" in export.notes[0]


def test_clients_send_texts_and_dates_as_they_are_in_a_table() -> None:
    number = NumericColumn(name="x", mean=1, std=2, minimum=0, maximum=3, missing=0)
    day = DateColumn(name="day", minimum=0, maximum=100 * 86_400, missing=0)
    text = TextColumn(name="note", longest=5)
    sent = {"x": [3.0], "day": ["1970-01-11"], "note": ["a b"]}
    tensors = {name: tf.constant(values) for name, values in sent.items()}
    columns = table_preprocessing(TableSchema(label="y", columns=(number, day, text)), "columns")
    assert _columns(columns) == {"x": "float32", "day": "string", "note": "string"}
    found = _transform(columns)(tensors)
    assert found["x"].numpy().tolist() == [[1.0]]
    assert found["day"].numpy().tolist() == [10 * 86_400]
    assert found["note"].numpy().tolist() == [b"a b"]
    vector = table_preprocessing(TableSchema(label="y", columns=(number, day)))
    assert _columns(vector) == {"x": "float32", "day": "string"}
    row = _transform(vector)({"x": tensors["x"], "day": tensors["day"]}).numpy()[0]
    np.testing.assert_allclose(row[:2], [1.0, 0.1], rtol=1e-6)
    assert row.shape == (8,)
    only = table_preprocessing(TableSchema(label="y", columns=(text,)), "columns")
    for spec, kind in ((tf.TensorSpec([None], tf.string), tf.Tensor), (None, dict)):
        assert isinstance(_as_input(_transform(only)({"note": tensors["note"]}), spec), kind)


def test_a_vector_has_ordered_dates_and_words_of_texts() -> None:
    day = DateColumn(name="day", order="dmy", minimum=0, maximum=100 * 86_400)
    text = TextColumn(name="note", longest=9, vocabulary=("good", "wine"))
    vector = table_preprocessing(TableSchema(label="y", columns=(day, text)))
    assert _columns(vector) == {"day": "string", "note": "string"}
    sent = {"day": ["11/01/1970", "na"], "note": ["Wine!", "none"]}
    rows = _transform(vector)({k: tf.constant(v) for k, v in sent.items()}).numpy()
    np.testing.assert_allclose(rows[0, [0, 7, 8]], [0.1, 0.0, 1.0], rtol=1e-6)
    assert rows.shape == (2, 9)
    assert not rows[1].any()


def test_a_record_is_compared_as_clients_would_send_it() -> None:
    example = {"key": "k", "column/x": 1.5, "column/day": 86_401, "column/note": "é".encode()}
    assert _row(example, {"day"}) == {"x": 1.5, "day": "1970-01-02T00:00:01Z", "note": "é"}
    assert _row({"column/day": -(2**63)}, {"day"}) == {"day": ""}
