from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import psutil
import pytest

from timonel.errors import CorruptError
from timonel.serving.server_records import (
    ServerRecord,
    find_server,
    parse_record,
    remove_record,
    running_servers,
    write_record,
)


def record(pid=None, created=None, started=1.0, models=("m",)):
    pid = os.getpid() if pid is None else pid
    if created is None:
        created = psutil.Process(pid).create_time()
    return ServerRecord(pid, created, models, "http://127.0.0.1:1", None, started)


@pytest.fixture
def other():
    """Another living process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


@pytest.mark.process
def test_running_servers_are_found_newest_first(tmp_path, other):
    mine, theirs = record(models=("a", "b")), record(other, started=2.0, models=("b",))
    for each in (mine, theirs):
        write_record(tmp_path, each)
    assert running_servers(tmp_path) == [theirs, mine]
    assert find_server(tmp_path, "b") == theirs
    assert find_server(tmp_path, "a") == mine
    assert find_server(tmp_path, "c") is None
    remove_record(tmp_path, mine.pid)
    remove_record(tmp_path, mine.pid)
    assert running_servers(tmp_path) == [theirs]


def test_replicas_of_endpoints_are_listed_but_not_found(tmp_path):
    replica = dataclasses.replace(record(), replica="digits-v1-1-1")
    write_record(tmp_path, replica)
    assert running_servers(tmp_path) == [replica]
    assert find_server(tmp_path, "m") is None


@pytest.mark.process
def test_a_document_of_a_gone_process_or_of_a_number_used_again_is_removed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    stale = [
        write_record(tmp_path, record(gone.pid, 1.0)),
        write_record(tmp_path, record(created=1.0)),
    ]
    assert running_servers(tmp_path) == []
    assert not any(path.exists() for path in stale)


@pytest.mark.process
def test_a_zombie_is_not_alive(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not record(process.pid).is_alive
    finally:
        process.wait()


def test_what_is_no_document_of_ours_is_left_alone(tmp_path):
    (tmp_path / "1.json").write_text('{"kind": "server", "format": 99}')
    (tmp_path / "2.json").write_text("{")
    assert running_servers(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(CorruptError, match="invalid record of a server"):
        parse_record({"pid": 1})
