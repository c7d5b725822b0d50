"""Version changes of a running server, told as they happen."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from timonel.cli import watch
from timonel.cli.watch import ReportedVersion, VersionWatcher, changes, parse_states

UP = ReportedVersion("AVAILABLE")
LOADING = ReportedVersion("LOADING")
GONE = ReportedVersion("END")
BROKEN = ReportedVersion("END", "no graph")


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({}, {1: UP}, ["loaded version 1"]),
        ({1: UP}, {1: UP, 2: LOADING}, []),
        ({1: UP, 2: LOADING}, {1: GONE, 2: UP}, ["unloaded version 1", "loaded version 2"]),
        ({1: UP, 2: UP}, {1: UP}, ["unloaded version 2"]),
        ({1: UP}, {1: UP, 3: BROKEN}, ["version 3 cannot be served: no graph"]),
        ({1: UP, 3: BROKEN}, {1: UP, 3: BROKEN}, []),
    ],
)
def test_changes(before, after, lines: list[str]) -> None:
    assert changes(before, after) == lines


def answer(**states: str) -> dict[str, object]:
    return {
        "model_version_status": [
            {"version": number, "state": state, "status": {"error_code": "OK", "error_message": ""}}
            for number, state in states.items()
        ]
    }


def test_an_answer_is_parsed() -> None:
    failed = {
        "version": "3",
        "state": "END",
        "status": {"error_code": "INTERNAL", "error_message": "x"},
    }
    value = {
        "model_version_status": [failed, *answer(**{"2": "AVAILABLE"})["model_version_status"]]
    }
    assert parse_states(value) == {3: ReportedVersion("END", "x"), 2: UP}


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, object]]]:
    """A server whose answer the test sets."""
    holder: dict[str, object] = answer(**{"1": "AVAILABLE"})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(holder).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", holder
    http.shutdown()
    thread.join()
    http.server_close()


def test_a_watch_tells_what_changes(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL_S", 0.02)
    url, holder = server
    told: list[str] = []
    heard = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        if "unloaded" in line:
            heard.set()

    with VersionWatcher(url, "digits", tell):
        assert told == ["digits: loaded version 1"]
        holder.update(answer(**{"1": "END", "2": "AVAILABLE"}))
        assert heard.wait(10)
    assert set(told[1:]) == {"digits: unloaded version 1", "digits: loaded version 2"}


def test_a_watch_takes_no_signal_that_is_for_the_program(server, monkeypatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL_S", 0.01)
    url, states = server
    states.update(answer(**{"1": "AVAILABLE"}))
    masks: dict[str, set[int]] = {}
    seen = threading.Event()

    def tell(line: str) -> None:
        masks[threading.current_thread().name] = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        if "2" in line:
            seen.set()

    with VersionWatcher(url, "digits", tell):
        states.update(answer(**{"2": "AVAILABLE"}))
        assert seen.wait(30)
    assert masks.pop("watch-digits") >= {signal.SIGINT, signal.SIGTERM}
    assert all(not mask & {signal.SIGINT, signal.SIGTERM} for mask in masks.values())
    assert masks


def test_a_server_that_is_gone_is_no_error() -> None:
    told: list[str] = []
    VersionWatcher("http://127.0.0.1:9", "digits", told.append).poll()
    assert told == []
