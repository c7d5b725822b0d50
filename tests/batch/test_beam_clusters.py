"""Batch predictions on standalone clusters of Flink and Spark, one of whose machines is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.runners import clusters
from tests.data.runners.clusters import Client, Cluster
from timonel.batch import predict_batch
from timonel.batch.shards import PredictionJournal
from timonel.storage import Workspace

pytestmark = [
    pytest.mark.beam,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        clusters.JARS is None, reason="needs Java and the jars of make test-beam (Maven)"
    ),
]

SHARDS = 80
PROGRAM = """
import sys
import timonel.batch.plan as plan
plan._SHARD_BYTES = 1000
from timonel.batch import predict_batch
_, options, source, out, workspace = sys.argv
predict_batch(
    "doubler", source, out, workspace=workspace, batch_size=8, runner="beam", beam=options
)
"""


def test_a_killed_machine_changes_no_byte(
    beam_cluster: Cluster, models: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.batch.plan._SHARD_BYTES", 1000)
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.parquet"
    rows = [f"[{i / 7:.3f}, {-i}]" if i % 1000 else '["bad", 0]' for i in range(1, 5001)]
    source.write_text("\n".join(rows))
    local = predict_batch("doubler", source, tmp_path / "local.parquet", workspace=models)
    finished, log = PredictionJournal.beside(out).root / "finished", tmp_path / "client.log"
    arguments = (str(source), str(out), models.uri)
    with Client(beam_cluster, PROGRAM, *arguments, finished=finished, log=log) as client:
        client.lose_a_machine(SHARDS)
    assert out.read_bytes() == local.out.read_bytes()
    errors = [path.with_name(f"{path.name}.errors.jsonl").read_bytes() for path in (out, local.out)]
    assert errors[0] == errors[1]
