"""A disk that is full: where requests are logged, where the server's own log and document are."""

from __future__ import annotations

import os

import pytest

from tests.serving.hardening.harness import (
    GrpcClient,
    RestClient,
    asking,
    get,
    publish,
    serving,
    states,
)
from tests.serving.hardening.page import note
from tests.waiting import until
from timonel.serving.settings.models import ModelSettings, RequestLogSettings
from timonel.storage import find_workspace

pytestmark = pytest.mark.soak


def fill(folder):
    """Leave no byte; return the file that holds them."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            while True:
                try:
                    file.write(bytes(size))
                except OSError:
                    break
    return path


def test_where_requests_are_logged(workspace, m, small_disk):
    model = ModelSettings(
        name="m",
        base_path=str(m),
        request_log=RequestLogSettings(filename_prefix=str(small_disk / "m"), sampling_rate=1.0),
    )
    with serving(workspace, models=(model,)) as server:
        clients = [RestClient(server), GrpcClient(server)]
        with asking(*clients, pause_s=0.001) as told:
            until(lambda: "Cannot log requests" in server.logs())
            asked = told.asked
            until(lambda: told.asked > asked + 500)
            publish(m, 2)
            until(lambda: states(server).get(2) == "AVAILABLE")
            _, page = get(server, "/monitoring/prometheus/metrics")
            assert b'request_log_count{model_name="m",status_code="RESOURCE_EXHAUSTED"}' in page
            # Once there is room, it goes on by itself. Files are closed after a minute.
            until(lambda: list(small_disk.glob("*.tfrecord")))
            before = {path.name for path in small_disk.iterdir()}
            for path in small_disk.glob("*.tfrecord"):
                path.unlink()
            until(lambda: {path.name for path in small_disk.iterdir()} - before)
    assert told.failed == {}
    assert server.logs().count("Cannot log requests") < 10
    note(
        "no room for the log of requests",
        f"{told.asked} requests, 0 failed; goes on when there is room",
    )


def test_where_everything_else_is(workspace, m, small_disk, monkeypatch):
    """The server's log, its document and its temporary files."""
    monkeypatch.setenv("TMPDIR", str(small_disk))
    place = find_workspace(small_disk / "w")
    model = ModelSettings(name="m", base_path=str(m))
    with serving(place, models=(model,)) as server:
        filler = fill(small_disk)
        with asking(RestClient(server), GrpcClient(server)) as told:
            for number in range(2, 8):
                publish(m, number)
                until(lambda number=number: states(server).get(number) == "AVAILABLE")
            large = RestClient(server, body=b'{"instances": [%s 1]}' % (b"1.5," * 200_000))
            large._connection.request("POST", large._path, large._body)
            response = large._connection.getresponse()
            assert response.status == 200
            assert len(response.read()) > 500_000
            large.close()
        # Its document is removed, and its end is in order, though it can log nothing.
        assert server.stop() == 0
        os.unlink(filler)  # noqa: PTH108 - the opposite of fill
    assert told.failed == {}
    note(
        "no room for the server's own log and temporary files",
        f"6 swaps, {told.asked} requests, 0 failed",
    )
