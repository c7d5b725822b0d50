"""Traces of load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from timonel.endpoints.autoscaling.traces import TRACES, load_trace, parse_trace
from timonel.errors import DataError, NotFoundError


def test_rows_hold_until_the_next_one() -> None:
    trace = parse_trace("time,rps\n10,1\n12,4\n13,2\n")
    assert trace.unit == "rps"
    assert trace.levels.tolist() == [1, 1, 4, 2]


def test_parts_of_seconds_are_averaged() -> None:
    trace = parse_trace("time,concurrency\n0,2\n0.5,4\n1.5,0\n")
    assert trace.unit == "concurrency"
    assert trace.levels.tolist() == [3, 2, 0]


def test_dates() -> None:
    text = "time, rps\n2026-01-01T00:00:00Z, 1\n2026-01-01T00:01:00+00:00, 2\n"
    assert parse_trace(text).levels.tolist() == [1] * 60 + [2] * 60


@pytest.mark.parametrize("name", TRACES)
def test_made_up_traces(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace = load_trace(name)
    assert np.isfinite(trace.levels).all()
    assert trace.levels.min() >= 0
    (tmp_path / name).write_text("time,rps\n0,1\n1,1\n")
    assert len(load_trace(name).levels) == 2  # a file of the user's comes first


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "of an empty file: name them 'time' and 'rps' or 'concurrency'"),
        ("time,load\n1,1\n2,2\n", "the trace has the columns time, load"),
        ("time,rps\n1,1\n", "fewer than two rows"),
        ("time,rps\n1,1\n1,2\n", "line 3: the time does not increase"),
        ("time,rps\n1,-1\n2,2\n", "line 2: expected rps from 0 to 1e+12, got -1"),
        ("time,rps\n1,1e30\n2,2\n", "line 2: expected rps from 0 to 1e+12, got 1e+30"),
        ("time,rps\n1,nan\n2,2\n", "line 2: 'nan' is no finite number"),
        ("time,rps\n1\n2,2\n", "line 2: None is no finite number"),
        ("time,rps\nsoon,1\n2,2\n", "line 2: 'soon' is not a time: use seconds or ISO 8601"),
        ("time,rps\n0,1\n9999999,2\n", "days long, more than 31"),
    ],
)
def test_wrong_traces_are_refused(text: str, line: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_trace(text)
    assert line in str(caught.value)


def test_files_of_spreadsheets(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes(b"\xef\xbb\xbftime,rps\r\n0,5\r\n2,10\r\n")
    assert load_trace(str(tmp_path / "trace.csv")).levels.tolist() == [5, 5, 10, 10]


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'spike'"):
        load_trace("spikes")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot read"):
        load_trace(str(tmp_path / "bytes"))
