"""The log of a job is complete and in order, whoever writes and reads it when."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buckets import open_bucket
from timonel.engines.base import LogLine
from timonel.engines.kubernetes import job_log
from timonel.engines.kubernetes.job_log import JobLog, LogReader
from timonel.errors import InputError
from timonel.storage.object_store import ObjectStore

LINES = st.tuples(
    st.sampled_from(["chief-0", "worker-1"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=30),
)
STEPS = st.lists(st.one_of(LINES, st.sampled_from(["flush", "read", "restart"])), max_size=40)


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for uri in open_bucket(request.param, request, monkeypatch):
        yield ObjectStore(uri)


@settings(max_examples=60)
@given(STEPS)
def test_all_lines_are_read_once_in_order(steps: list[tuple[str, str] | str]) -> None:
    store = ObjectStore(f"memory://{uuid.uuid4().hex}")
    log, reader = JobLog(store, "one"), LogReader(store, "one")
    written: list[LogLine] = []
    read: list[LogLine] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_log, "SEGMENT_BYTES", 64)
        for step in [*steps, "flush", "read"]:
            match step:
                case "flush":
                    log.flush()
                case "read":
                    read += reader.read()
                case "restart":
                    log.flush()
                    log = JobLog(store, "one")
                case task_id, text:
                    log.add(task_id, text)
                    written.append(LogLine(task_id=task_id, text=text))
    assert read == written
    assert LogReader(store, "one").read() == written
    assert reader.read() == []


def test_long_logs_have_several_objects(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "SEGMENT_BYTES", 1000)
    log, reader = JobLog(store, "one"), LogReader(store, "one")
    assert reader.read() == []
    for number in range(40):
        log.add("chief-0", f"{number:0100d}")
        log.flush()
    assert len(reader.read()) == 40
    other = JobLog(store, "one")
    other.add("chief-0", "of the next coordinator")
    other.flush()
    assert [line.text for line in reader.read()] == ["of the next coordinator"]
    assert sorted(store.find("jobs/one/log")) == [
        f"jobs/one/log/{number:06d}" for number in range(1, 6)
    ]


def test_lines_wait_while_the_bucket_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore(f"memory://{uuid.uuid4().hex}")
    log = JobLog(store, "one")
    log.add("chief-0", "one\ttab")

    def failing(*_: object) -> None:
        raise InputError("the bucket is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "write", failing)
        with pytest.raises(InputError, match="away"):
            log.flush()
    log.add("chief-0", "lone \udc80 surrogate")
    log.flush()
    texts = [line.text for line in LogReader(store, "one").read()]
    assert texts == ["one\ttab", "lone \\udc80 surrogate"]


def test_nothing_is_written_without_new_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore(f"memory://{uuid.uuid4().hex}")
    log = JobLog(store, "one")
    log.flush()
    assert store.find() == {}
    log.add("chief-0", "x")
    log.flush()
    monkeypatch.setattr(store, "write", None)
    log.flush()
