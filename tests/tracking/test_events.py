from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.storage import Workspace
from timonel.tracking import follow_events, read_run, start_run
from timonel.tracking.events import (
    EventReader,
    append_event,
    decode_number,
    encode_number,
    read_events,
)


@given(st.floats(allow_nan=False))
def test_every_number_comes_back(value: float) -> None:
    assert decode_number(encode_number(value)) == value


def test_a_reader_gives_each_line_once_and_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert reader.read() == []
    append_event(path, {"t": 1, "type": "a"})
    with path.open("ab") as file:
        file.write(b'{"t": 2, "type"')
    assert [event["type"] for event in reader.read()] == ["a"]
    assert reader.read() == []
    assert reader.has_torn_end
    with path.open("ab") as file:
        file.write(b': "b"}\n')
    assert [event["type"] for event in reader.read()] == ["b"]
    assert not reader.has_torn_end
    assert reader.offset == path.stat().st_size


def test_lone_surrogates_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    fields = {"text": "a\udcff", "all": [Path("b\udcff"), ("\ud800", {"c\udcff": np.float32(1)})]}
    append_event(path, {"t": 1, "type": "a", **fields})
    assert read_events(path) == (
        [
            {
                "t": 1,
                "type": "a",
                "text": "a\\udcff",
                "all": ["b\\udcff", ["\\ud800", {"c\\udcff": 1}]],
            }
        ],
        0,
    )


def test_a_reader_goes_on_from_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for number in range(100):
        append_event(path, {"t": number, "type": "a"})
    first = EventReader(path)
    head = first.read(limit_bytes=200)
    assert 0 < len(head) < 100
    rest, _ = EventReader(path, first.offset).read(), None
    assert [event["t"] for event in head + rest] == list(range(100))


def test_a_file_of_nothing_but_rubbish_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"rubbish\n" * 10)
    assert read_events(path) == ([], 10)


def test_following_ends_after_the_finish_event(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    run.event("progress", step=1)

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        run.event("progress", step=2)
        run.finish("succeeded")
        run.event("log", text="afterwards")

    types = [
        event["type"]
        for event in follow_events(
            workspace, run.run_id, stop=lambda: False, poll_s=0.5, sleep=sleep
        )
    ]
    assert types == ["progress", "progress", "finish"]


def test_following_goes_on_where_a_run_was_resumed(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    run.finish("failed", "no luck", "user-error")
    run.event("resume")
    run.event("progress", step=1)

    def sleep(_seconds: float) -> None:
        run.finish("succeeded")

    events = follow_events(workspace, run.run_id, stop=lambda: False, sleep=sleep)
    assert [event["type"] for event in events] == ["finish", "resume", "progress", "finish"]
    record = read_run(workspace, run.run_id)
    assert (record.status, record.message, record.cause) == ("succeeded", None, None)


def test_following_gives_what_is_there_before_it_stops(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    run.event("progress", step=1)
    events = follow_events(workspace, run.run_id, stop=lambda: True, sleep=pytest.fail)
    assert [event["step"] for event in events] == [1]


def test_following_sees_another_thread_append(workspace: Workspace) -> None:
    run = start_run(workspace, "train")
    writer = threading.Timer(0.05, run.finish, ["failed"])
    writer.start()
    events = list(follow_events(workspace, run.run_id, stop=lambda: False, poll_s=0.01))
    writer.join()
    assert [event["status"] for event in events] == ["failed"]
