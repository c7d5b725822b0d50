"""Batch predictions that are killed, and continue."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.waiting import until
from timonel.batch import predict_batch
from timonel.batch.shards import PredictionJournal
from timonel.errors import AlreadyExistsError
from timonel.storage import Workspace, digest_file, digest_tree
from timonel.tracking import list_runs

PROGRAM = """
import sys
import timonel.batch.plan as plan
plan._SHARD_BYTES = 400
from timonel.batch import predict_batch
predict_batch("doubler", sys.argv[1], sys.argv[2], workspace=sys.argv[3], batch_size=8)
"""

STOPPED = """
import os, signal, sys
from timonel.batch import predict_batch, prediction
real = prediction.publish
def publish(*arguments, **options):
    real(*arguments, **options)
    os.kill(os.getpid(), int(sys.argv[4]))
prediction.publish = publish
predict_batch("doubler", sys.argv[1], sys.argv[2], workspace=sys.argv[3])
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [f"[{i / 7}, {-i}]" if i % 100 else '["bad", 0]' for i in range(1, 4001)]
    path.write_text("\n".join(rows))
    return path


def start(source: Path, out: Path, workspace: Workspace) -> subprocess.Popen[bytes]:
    arguments = [str(source), str(out), workspace.uri]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])


def whole(source: Path, tmp_path: Path, models: Workspace, monkeypatch) -> Path:
    monkeypatch.setattr("timonel.batch.plan._SHARD_BYTES", 400)
    out = tmp_path / "whole.parquet"
    done = predict_batch("doubler", source, out, batch_size=8, workspace=models, max_errors=0.02)
    assert (done.rows, done.failed) == (3960, 40)
    return out


def check_a_kill(number: int, source: Path, expected: Path, models: Workspace) -> None:
    """Kill a job at a random moment, continue it, and compare its output."""
    out = expected.with_name(f"out{number}.parquet")
    journal, random = PredictionJournal.beside(out), Random(number)
    finished, after = journal.root / "finished", random.randrange(1, 100)
    process = start(source, out, models)
    try:
        until(lambda: process.poll() is not None or len(list(finished.glob("*"))) > after)
        time.sleep(random.random() / 50)  # anywhere within a shard
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert not out.exists()
    assert len(list(finished.glob("*.json"))) >= after
    predict_batch("doubler", source, out, batch_size=8, workspace=models, max_errors=0.02)
    assert out.read_bytes() == expected.read_bytes()
    errors = [path.with_name(f"{path.name}.errors.jsonl").read_bytes() for path in (out, expected)]
    assert errors[0] == errors[1]
    assert errors[0].count(b"\n") == 40
    assert not journal.root.exists()
    assert not list(expected.parent.glob(".tmp-*"))


@pytest.mark.process
def test_a_killed_job_continues_with_the_same_bytes(
    models: Workspace, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_a_kill(0, source, whole(source, tmp_path, models, monkeypatch), models)


@pytest.mark.soak
def test_many_kills(
    models: Workspace, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = whole(source, tmp_path, models, monkeypatch)
    for number in range(1, 21):
        check_a_kill(number, source, expected, models)


@pytest.mark.process
def test_the_models_process_is_killed(
    models: Workspace, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    expected = whole(source, tmp_path, models, monkeypatch)
    out, killed = tmp_path / "out.parquet", []

    def kill(done: int, _total: int) -> None:
        if done > 500 and not killed:
            for child in psutil.Process().children(recursive=True):
                if child.name() == "timonel doubler":
                    child.kill()
                    killed.append(child.pid)

    monkeypatch.setattr("timonel.data.progress.INTERVAL_S", 0.0)
    done = predict_batch(
        "doubler", source, out, batch_size=8, workspace=models, max_errors=0.02, progress=kill
    )
    assert killed
    assert (done.rows, done.failed) == (3960, 40)
    assert out.read_bytes() == expected.read_bytes()


@pytest.mark.process
def test_a_changed_input_starts_anew(
    models: Workspace, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setattr("timonel.batch.plan._SHARD_BYTES", 400)
    monkeypatch.setattr("timonel.data.progress.INTERVAL_S", 0.0)

    def stop(done: int, _total: int) -> None:
        if done > 500:
            raise KeyboardInterrupt

    out = tmp_path / "out.jsonl"
    options = {"batch_size": 8, "workspace": models, "max_errors": 0.02}
    with pytest.raises(KeyboardInterrupt):
        predict_batch("doubler", source, out, progress=stop, **options)
    source.write_text("[1.0, 2.0]\n" * 50)
    predict_batch("doubler", source, out, **options)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["doubled"] for row in rows] == [[2.0, 4.0]] * 50
    assert "predicting anew" in caplog.text


@pytest.mark.process
@pytest.mark.parametrize("name", ["out.csv", "folder"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_job_that_was_stopped_after_publishing_ends(
    models: Workspace, tmp_path: Path, name: str, number: int
) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out" / name
    source.write_text("[1.0, 2.0]\n" * 50)
    out.parent.mkdir()
    arguments = [str(source), str(out), models.uri, str(int(number))]
    assert subprocess.run([sys.executable, "-c", STOPPED, *arguments], check=False).returncode
    before = digest_of(out)
    assert [run.status for run in list_runs(models) if run.kind == "predict"] in [
        ["stopped"],
        ["lost"],
    ]
    done = predict_batch("doubler", source, out, workspace=models)
    assert (done.rows, digest_of(out)) == (50, before)
    assert list(out.parent.iterdir()) == [out]
    (run,) = [run for run in list_runs(models) if run.kind == "predict"]
    assert (run.status, run.outputs[0].digest) == ("succeeded", before)
    with pytest.raises(AlreadyExistsError, match="already exists"):
        predict_batch("doubler", source, out, workspace=models)


def digest_of(out: Path) -> str:
    return digest_tree(out) if out.is_dir() else digest_file(out)
