"""Shards of the input: every row in exactly one, in order."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from timonel.batch.inputs import find_inputs
from timonel.batch.plan import RECORD, PredictionSpec, digest_of, plan_shards
from timonel.batch.readers import read_batches
from timonel.data.records import frame

JOB = PredictionSpec("m", 1, "m", "id", "serving_default", 3, "jsonl", {"x": "x"})
LISTS = st.lists(st.lists(st.integers(0, 10**6), max_size=30), min_size=1, max_size=4)
SLOW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


def write(kind: str, path: Path, rows: list[int]) -> None:
    if kind == "jsonl":
        path.write_text("".join(f"\n{json.dumps({'x': row})}\r\n" for row in rows))
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress("\n".join(json.dumps({"x": row}) for row in rows).encode()))
    elif kind == "csv":
        path.write_text("".join(["x,y\n", *(f'{row},"a\nb"\n' for row in rows)]))
    elif kind == "parquet":
        pq.write_table(pa.table({"x": pa.array(rows, pa.int64())}), path, row_group_size=4)
    else:
        path.write_bytes(b"".join(b"".join(frame(str(row).encode())) for row in rows))


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet", "tfrecord"])
@SLOW
@given(files=LISTS)
def test_every_row_is_in_one_shard(
    kind: str, files: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.batch.plan._SHARD_BYTES", 64)
    monkeypatch.setattr("timonel.batch.plan._PARQUET_ROWS", 6)
    names = [tmp_path / f"{number}.{kind}" for number in range(len(files))]
    for name, rows in zip(names, files, strict=True):
        write(kind, name, rows)
    job = JOB if kind != "tfrecord" else PredictionSpec(**{**vars(JOB), "columns": {"x": RECORD}})
    found = find_inputs(names)
    plans = plan_shards(found.files, "jsonl")
    values, keys = [], []
    for plan in plans:
        batches = [load() for load in read_batches(plan, job)]
        assert sum(map(len, batches)) == plan.records
        assert all(len(batch) <= 3 for batch in batches)
        for batch in batches:
            keys += batch.keys
            column = batch.columns["x"]
            values += column.to_pylist() if isinstance(column, pa.Array) else column
    assert [int(value) for value in values] == [row for rows in files for row in rows]
    expected = [
        f"{name}#{i + 1}" for name, rows in zip(names, files, strict=True) for i in range(len(rows))
    ]
    assert keys == (expected if len(files) > 1 else [key.rpartition("/")[2] for key in expected])
    assert [plan.name for plan in plans] == [f"{number:05d}.jsonl" for number in range(len(plans))]


def test_another_file_or_option_is_another_job(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"x": 1}\n')
    before = digest_of(find_inputs([path]).files, JOB)
    assert digest_of(find_inputs([path]).files, JOB) == before
    assert (
        digest_of(find_inputs([path]).files, PredictionSpec(**{**vars(JOB), "batch_size": 4}))
        != before
    )
    path.write_text('{"x": 1}\n{"x": 2}\n')
    assert digest_of(find_inputs([path]).files, JOB) != before
