from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buckets import open_bucket
from tests.contracts.runners import images, planned
from timonel.data.runners.exchange import Exchange
from timonel.data.shards import ConversionJob, ConversionJournal, write_one
from timonel.errors import SpecError
from timonel.storage import digest_tree
from timonel.storage.object_store import ObjectStore


@pytest.fixture(params=["folder", "memory", "s3"])
def exchange(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Exchange]:
    """An exchange of the conversion whose journal is in the folder ``job``."""
    if request.param == "folder":
        yield Exchange(str(tmp_path / "job"))
        return
    for uri in open_bucket(request.param, request, monkeypatch):
        yield Exchange(uri)


def test_shards_of_workers_come_into_the_journal(exchange: Exchange, tmp_path: Path) -> None:
    source = images(tmp_path)
    expected, plans = planned(source, tmp_path / "expected")
    for plan in plans:
        write_one(plan, expected)
    job, _ = planned(source, tmp_path / "job")
    exchange.offer(job.journal, [plan.name for plan in plans])
    worker = pickle.loads(pickle.dumps(exchange))
    for plan in plans:
        with worker.shard(plan.name, ConversionJournal) as journal:
            write_one(plan, ConversionJob(source, journal, job.labels))
        exchange.collect(job.journal)
        assert job.journal.outcome(plan.name) == expected.journal.outcome(plan.name)
    assert digest_tree(job.journal.content) == digest_tree(expected.journal.content)


def test_a_finished_shard_is_not_written_again(exchange: Exchange, tmp_path: Path) -> None:
    source = images(tmp_path)
    job, plans = planned(source, tmp_path / "job")
    exchange.offer(job.journal, [plan.name for plan in plans])
    with exchange.shard(plans[0].name, ConversionJournal) as journal:
        write_one(plans[0], ConversionJob(source, journal, job.labels))
    with exchange.shard(plans[0].name, ConversionJournal) as journal:
        assert journal is None


def test_a_shard_without_an_outcome_is_not_collected(tmp_path: Path) -> None:
    job, plans = planned(images(tmp_path), tmp_path / "job")
    exchange = Exchange(f"memory://{tmp_path.name}/half")
    exchange.offer(job.journal, [plan.name for plan in plans])
    ObjectStore(exchange.place).write(f"content/{plans[0].name}", b"half")
    exchange.collect(job.journal)
    assert not job.journal.has_finished()
    exchange.remove()
    assert ObjectStore(exchange.place).find() == {}


def test_errors_of_workers_reach_the_client(exchange: Exchange, tmp_path: Path) -> None:
    job, plans = planned(images(tmp_path), tmp_path / "job")
    assert exchange.failure() is None
    exchange.report(SpecError("the disk is full", hint="make room"))
    assert str(exchange.failure()) == "the disk is full: make room"
    exchange.offer(job.journal, [plan.name for plan in plans])
    assert exchange.failure() is None


def test_workers_of_an_earlier_job_do_not_count(exchange: Exchange, tmp_path: Path) -> None:
    job, plans = planned(images(tmp_path), tmp_path / "job")
    assert not exchange.has_started()
    exchange.start()
    exchange.start()
    assert exchange.has_started()
    exchange.offer(job.journal, [plan.name for plan in plans])
    assert not exchange.has_started()


def test_leases(exchange: Exchange, tmp_path: Path) -> None:
    planned(images(tmp_path), tmp_path / "job")
    assert exchange.lease() is None
    exchange.renew(1)
    first = exchange.lease()
    exchange.renew(2)
    assert exchange.lease() not in {first, None}
    exchange.release()
    assert exchange.lease() is None


def test_collecting_lists_only_finished_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, plans = planned(images(tmp_path), tmp_path / "job")
    exchange, listed = Exchange(f"memory://{tmp_path.name}/listed"), []
    exchange.offer(job.journal, [plan.name for plan in plans])
    with exchange.shard(plans[0].name, ConversionJournal) as journal:
        write_one(plans[0], ConversionJob(job.source, journal, job.labels))
    find = ObjectStore.find
    monkeypatch.setattr(
        ObjectStore, "find", lambda store, folder="": listed.append(folder) or find(store, folder)
    )
    exchange.collect(job.journal)
    exchange.collect(job.journal)
    assert listed == ["finished", "finished"]
    assert job.journal.is_finished(plans[0].name)
