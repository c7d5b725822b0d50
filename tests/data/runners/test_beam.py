"""The runner on Apache Beam; most tests need it, and run with ``make test-beam``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.buckets import open_bucket
from tests.contracts.runners import RunnerContract, images, planned
from tests.data.conftest import MakeCsv, MakeImages
from tests.waiting import until
from timonel.data.conversion import convert
from timonel.data.runners import Report, Runner, portable
from timonel.data.runners.beam import BeamRunner, build, parse_options
from timonel.data.runners.exchange import Exchange
from timonel.data.runners.portable import PortableJob
from timonel.data.shards import ConversionJob, ConversionJournal, ShardOutcome, ShardPlan, write_one
from timonel.data.sources.table import TableSource
from timonel.data.sources.tablefile import MemoryTable
from timonel.errors import InputError, SpecError
from timonel.storage import Workspace, digest_tree
from timonel.storage.object_store import ObjectStore

PRISM = shutil.which(os.environ.get("TIMONEL_PRISM") or "prism")
# DirectRunner tries to download Prism first, then runs this one.
DIRECT = "runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
ENGINES = [
    pytest.param(DIRECT, id="direct"),
    pytest.param(
        f"runner=PrismRunner,prism_location={PRISM},environment_type=LOOPBACK",
        id="prism",
        marks=pytest.mark.skipif(
            PRISM is None, reason="needs Prism, which make test-beam installs with Go"
        ),
    ),
]
pytestmark = [pytest.mark.beam, pytest.mark.filterwarnings("default")]

PROGRAM = """
import sys
from timonel.data import convert
convert(sys.argv[1], sys.argv[2], shards=40, workspace=sys.argv[3], runner="beam", beam=sys.argv[4])
"""


class TestBeamRunner(RunnerContract):
    @pytest.fixture(params=ENGINES)
    def runner(self, request: pytest.FixtureRequest) -> Runner:
        return BeamRunner(request.param)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_bytes_are_those_of_the_local_runner(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace, engine: str
) -> None:
    root = make_images(count=100)
    local = convert(root, tmp_path / "local", shards=5, workspace=workspace)
    seen: list[tuple[int, int]] = []
    made = convert(
        root,
        tmp_path / "beam",
        shards=5,
        workspace=workspace,
        runner="beam",
        beam=engine,
        progress=lambda *counts: seen.append(counts),
    )
    assert made.digest == local.digest
    assert made.manifest.record_schema == local.manifest.record_schema
    assert made.manifest.index == local.manifest.index
    assert seen[-1] == (200, 200)
    assert sorted(path.name for path in made.path.iterdir()) == sorted(
        path.name for path in local.path.iterdir()
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_conversion_continues(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace, engine: str, number: int
) -> None:
    root, out = make_images(count=800), tmp_path / "out" / "set"
    arguments = [str(root), str(out), workspace.uri, engine]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])
    finished = ConversionJournal.beside(out).root / "finished"
    try:
        until(lambda: process.poll() is not None or len(list(finished.glob("*.json"))) > 2)
        assert process.poll() is None
    finally:
        process.send_signal(number)
        process.wait(60)
    if not out.exists():
        if number == signal.SIGTERM:
            assert not (ConversionJournal.beside(out).root / "client").exists()
        convert(root, out, shards=40, workspace=workspace)
    whole = convert(root, tmp_path / "whole", shards=40, workspace=workspace)
    left_out = ("manifest.json",)
    assert digest_tree(out, exclude=left_out) == digest_tree(whole.path, exclude=left_out)


def test_a_worker_that_cannot_read_is_one_line(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_one(*_: object) -> None:
        raise InputError("cannot read dog/004.png", hint="check the disk")

    monkeypatch.setattr("timonel.data.shards.read_one", read_one)
    with pytest.raises(InputError, match=r"^cannot read dog/004.png: check the disk$"):
        convert(make_images(), tmp_path / "set", workspace=workspace, runner="beam", beam=DIRECT)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_have_the_bytes_of_the_local_runner(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace, engine: str
) -> None:
    rows = make_csv()
    local = convert(rows, tmp_path / "local", label="good", shards=3, workspace=workspace)
    made = convert(
        rows,
        tmp_path / "beam",
        label="good",
        shards=3,
        workspace=workspace,
        runner="beam",
        beam=engine,
    )
    assert made.digest == local.digest


def test_a_worker_with_another_release_is_refused(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.data.runners.beam_worker.__version__", "0.0.1")
    with pytest.raises(InputError, match=r"has timonel 0\.0\.1 instead of .*: install the same"):
        convert(make_images(), tmp_path / "set", workspace=workspace, runner="beam", beam=DIRECT)


def test_a_worker_without_the_package(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(
            "Error in unpickling:\nModuleNotFoundError: No module named 'timonel'\n[]"
        )

    monkeypatch.setattr("timonel.data.runners.beam._run", fail)
    with pytest.raises(InputError, match="did not install timonel: start them with the boot"):
        convert(make_images(), tmp_path / "set", workspace=workspace, runner="beam", beam=DIRECT)


def test_a_table_that_changes_meanwhile_is_refused(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_csv()
    reopen = TableSource.reopen

    def changed(source: TableSource) -> None:
        os.utime(rows, ns=(1, 1))
        reopen(source)

    monkeypatch.setattr(TableSource, "reopen", changed)
    with pytest.raises(InputError, match="changed during its conversion: convert again"):
        convert(
            rows,
            tmp_path / "set",
            label="good",
            workspace=workspace,
            runner="beam",
            beam=DIRECT,
        )


class Unused(Report):
    """Report that a runner must not use."""

    def tick(self, records: int = 1) -> None:
        raise AssertionError(records)

    def finished(self, outcome: ShardOutcome) -> None:
        raise AssertionError(outcome)


def test_a_table_in_memory_is_refused(tmp_path: Path) -> None:
    source = TableSource(MemoryTable(pa.table({"size": [1, 2]})))
    job = ConversionJob(source, ConversionJournal(tmp_path), {})
    with pytest.raises(SpecError, match="cannot read a table in memory: write it to a Parquet"):
        BeamRunner(DIRECT).run(job, [], Unused())


@pytest.fixture
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from open_bucket("s3", request, monkeypatch)


@pytest.mark.parametrize("engine", ENGINES)
def test_files_are_exchanged_through_a_bucket(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace, bucket: str, engine: str
) -> None:
    root = make_images(count=100)
    ObjectStore(f"{bucket}/raw").upload(
        {path.relative_to(root).as_posix(): path for path in root.rglob("*.png")}
    )
    local = convert(f"{bucket}/raw", tmp_path / "local", shards=5, workspace=workspace)
    made = convert(
        f"{bucket}/raw",
        tmp_path / "beam",
        shards=5,
        workspace=workspace,
        runner="beam",
        beam=f"{engine},temp_location={bucket}/temp",
    )
    assert made.manifest.shards == local.manifest.shards
    assert ObjectStore(f"{bucket}/temp").find() == {}


def test_a_killed_conversion_collects_what_its_workers_left_in_the_bucket(
    make_images: MakeImages,
    tmp_path: Path,
    workspace: Workspace,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, written = make_images(count=100), []
    options = {"shards": 5, "workspace": workspace, "runner": "beam"}
    beam = f"{DIRECT},temp_location={bucket}/temp"

    def lost(*_: object) -> None:
        raise InputError("the client is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Exchange, "collect", lost)
        with pytest.raises(InputError, match="the client is gone"):
            convert(root, tmp_path / "set", beam=beam, **options)
    left = ObjectStore(f"{bucket}/temp").find()
    shards = sum("/finished/" in name for name in left)
    monkeypatch.setattr(portable, "write_one", counted(written))
    made = convert(root, tmp_path / "set", beam=beam, **options)
    assert len(written) == len(made.manifest.shards) - shards
    made.verify()


def counted(written: list[str]) -> Callable[..., ShardOutcome]:
    """Return `write_one`, which also lists the shards."""

    def write(plan: ShardPlan, *arguments: Any, **options: Any) -> ShardOutcome:
        written.append(plan.name)
        return write_one(plan, *arguments, **options)

    return write


@pytest.mark.parametrize("engine", ENGINES)
def test_counters_of_the_engine(tmp_path: Path, engine: str) -> None:
    from apache_beam.metrics.metric import MetricsFilter

    job, plans = planned(images(tmp_path), tmp_path / "job")
    exchange = Exchange(str(job.journal.root))
    exchange.renew(0)
    made = build(parse_options(engine), PortableJob.of(job), exchange, plans, tmp_path)
    result = made.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace("timonel"))["counters"]
    outcomes = [job.journal.outcome(plan.name) for plan in plans]
    assert {counter.key.metric.name: counter.result for counter in found} == {
        "records": sum(plan.records for plan in plans),
        "rejected": 1,
        "bytes": sum(outcome.bytes for outcome in outcomes),
    }


def test_a_job_ends_after_its_client(tmp_path: Path) -> None:
    job, plans = planned(images(tmp_path), tmp_path / "job")
    exchange = Exchange(str(job.journal.root))  # without a lease
    made = build(parse_options(DIRECT), PortableJob.of(job), exchange, plans, tmp_path)
    assert made.run().wait_until_finish() == "DONE"
    assert not list(tmp_path.glob("job/finished/*"))


def test_an_unknown_option() -> None:
    with pytest.raises(SpecError, match="Apache Beam has no option 'flink_mister'"):
        BeamRunner("runner=FlinkRunner,flink_mister=localhost:8081")
