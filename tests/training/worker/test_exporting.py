from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from timonel.data import load_registry
from timonel.data.load_registry import InputShard, LoadRecord
from timonel.data.preprocessing import table_preprocessing
from timonel.data.schema import TableSchema, TextColumn
from timonel.errors import SpecError

pytest.importorskip("tensorflow")

from timonel.training.worker.exporting import export_own


@pytest.fixture(autouse=True)
def new_session() -> Iterator[None]:
    load_registry.reset()
    yield
    load_registry.reset()


def test_a_model_with_inputs_that_no_client_can_send_is_refused(tmp_path: Path) -> None:
    schema = TableSchema(label="y", columns=(TextColumn(name="note", longest=5),))
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
    with pytest.raises(SpecError, match="but column 'note' is text") as caught:
        export_own(tmp_path / "export", object(), None, None)
    assert "preprocess=" in str(caught.value.hint)
    assert not (tmp_path / "export").exists()
