"""Batch prediction on Apache Beam, run by ``make test-beam``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.conftest import MakeImages
from tests.data.runners.test_beam import ENGINES
from timonel.batch import predict_batch
from timonel.batch.shards import PredictionJournal
from timonel.errors import DataError, SpecError
from timonel.storage import Workspace

pytestmark = [pytest.mark.beam, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_bytes_are_those_of_the_local_runner(
    models: Workspace,
    make_images: MakeImages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
) -> None:
    monkeypatch.setattr("timonel.batch.plan._SHARD_IMAGES", 16)
    root = make_images(count=50)
    (root / "cat" / "000.png").write_bytes(b"no image")
    options = {"workspace": models, "batch_size": 8}
    local = predict_batch("images", root, tmp_path / "local.parquet", **options)
    seen: list[tuple[int, int]] = []
    done = predict_batch(
        "images",
        root,
        tmp_path / "beam.parquet",
        runner="beam",
        beam=engine,
        progress=lambda *counts: seen.append(counts),
        **options,
    )
    assert (done.rows, done.failed) == (local.rows, local.failed) == (99, 1)
    assert done.out.read_bytes() == local.out.read_bytes()
    assert done.errors.read_bytes() == local.errors.read_bytes()
    assert seen[-1] == (100, 100)
    assert not PredictionJournal.beside(done.out).root.exists()


def test_an_error_of_a_worker_is_one_line(
    models: Workspace, make_images: MakeImages, tmp_path: Path
) -> None:
    root = make_images(count=5)
    for path in root.rglob("*.png"):
        path.write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(DataError, match="10 of 10 rows without a prediction"):
        predict_batch(
            "images",
            root,
            tmp_path / "o.csv",
            runner="beam",
            beam=ENGINES[0].values[0],
            workspace=models,
        )
    assert not (tmp_path / "o.csv").exists()


def test_an_unknown_option(models: Workspace, make_images: MakeImages, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="Apache Beam has no option 'flink_mister'"):
        predict_batch(
            "images", make_images(), tmp_path / "o.csv", runner="beam", beam="flink_mister=x"
        )
