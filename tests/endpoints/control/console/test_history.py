"""History of an endpoint: points, their file, events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from timonel.endpoints.control.console.history import (
    SPAN_S,
    EndpointPoint,
    History,
    Sample,
    changes,
    columns,
)
from timonel.endpoints.folder import EndpointStatus, ObservedVersion
from timonel.errors import InputError


def point(at: float, **sample: float) -> EndpointPoint:
    return EndpointPoint(at=at, versions={1: Sample(**sample)})  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def test_points_outlive_the_process(path: Path) -> None:
    written = History(path)
    written.add(point(5.0, rate=1.5, ready=1))
    written.add(EndpointPoint(at=10.0, events=("version 2 starts",)))
    assert History(path).points == written.points
    assert [each.at for each in written.points] == [5.0, 10.0]


def test_points_older_than_an_hour_are_dropped_and_the_file_is_bounded(path: Path) -> None:
    history = History(path)
    for number in range(1500):
        history.add(point(5.0 * number, rate=number))
    assert history.points[0].at == 5.0 * 1499 - SPAN_S
    assert len(history.points) == 721
    assert len(path.read_text().splitlines()) < 1450
    assert History(path).points[-721:] == history.points


def test_a_truncated_line_costs_one_point(path: Path) -> None:
    history = History(path)
    for at in (5.0, 10.0):
        history.add(point(at, rate=1))
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    again = History(path)
    assert [each.at for each in again.points] == [5.0]
    again.add(point(15.0, rate=1))
    assert [each.at for each in History(path).points] == [5.0, 15.0]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[]\n{}\nnull\n", b'{"at": "x"}\n'])
def test_a_damaged_file_is_an_empty_history(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert History(path).points == ()


def test_points_are_kept_in_memory_if_the_file_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    history = History(folder / "history.jsonl")
    with pytest.raises(InputError):
        history.add(point(5.0, rate=1))
    assert len(history.points) == 1
    folder.mkdir()
    history.add(point(10.0, rate=1))
    assert [each.at for each in history.points] == [5.0, 10.0]


def test_after_the_clock_was_set_back_points_are_in_order(path: Path) -> None:
    history = History(path)
    for at in (100.0, 105.0, 110.0, 103.0, 108.0):
        history.add(point(at))
    assert [each.at for each in history.points] == [100.0, 103.0, 108.0]
    assert History(path).points == history.points


def test_columns_add_up_versions_and_show_gaps() -> None:
    found = columns(
        [
            EndpointPoint(at=5.0, versions={1: Sample(rate=2, concurrency=1, ready=1, desired=2)}),
            EndpointPoint(
                at=10.0,
                versions={
                    1: Sample(rate=3, concurrency=0.5, held=1, ready=1, desired=1),
                    4: Sample(rate=0.5, ready=1, desired=1),
                },
            ),
            point(100.0, rate=1, concurrency=2),
        ]
    )
    assert found["at"] == [5.0, 10.0, 15.0, 100.0]
    assert found["rates"] == {"1": [2, 3, None, 1], "4": [None, 0.5, None, None]}
    assert found["concurrency"] == [1, 0.5, None, 2]
    assert (found["ready"], found["desired"]) == ([1, 2, None, 0], [2, 2, None, 0])
    assert found["held"] == [0, 1, None, 0]
    json.dumps(found)


def test_no_points_are_no_columns() -> None:
    assert columns([])["at"] == []


def status(**fields: object) -> EndpointStatus:
    return EndpointStatus.model_validate(fields)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"routed": 2}, ["revision 2 gets the traffic: a cause"]),
        (
            {"versions": {1: {"desired": 1}}},
            {"versions": {1: {"desired": 3, "reason": "panic: 9 in flight"}}},
            ["version 1: 1 to 3 replicas: panic: 9 in flight"],
        ),
        (
            {"versions": {1: ObservedVersion()}},
            {"versions": {2: {"message": "exit code 1"}}},
            ["version 2: exit code 1", "version 1 has ended"],
        ),
        (
            {"message": "version 2 starts"},
            {"message": "version 2 does not start"},
            ["version 2 does not start"],
        ),
        ({}, {"rejected": "in use"}, ["the gateway does not listen: in use"]),
        ({"message": "x", "at": 1.0}, {"at": 3.0}, []),
        (
            {"versions": {1: {"desired": 1, "message": "m", "rate": 1.0}}},
            {"versions": {1: {"desired": 1, "message": "m", "rate": 2.0}}},
            [],
        ),
    ],
)
def test_changes(before: dict[str, object], after: dict[str, object], expected: list[str]) -> None:
    assert list(changes(status(**before), status(**after), "a cause")) == expected
