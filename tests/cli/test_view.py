"""A property that is stated once is a column, a line of a page, and an entry of the JSON."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.test_render import plain
from timonel.cli.render.view import MOMENT, SECONDS, STATUS, WORDS, Field, View
from timonel.errors import CorruptError


def _reason(item: Any) -> str:
    if item.reason is None:
        raise CorruptError("its document is empty")
    return str(item.reason)


VIEW = View(
    Field("name", column="NAME", line="name"),
    Field("state", STATUS, column="STATE", line="state"),
    Field("made_at", MOMENT, line="made"),
    Field("took_s", SECONDS, column="TIME", line="took"),
    Field("tags", WORDS, column="TAGS", line="tags"),
    Field("place", column="PLACE", is_optional=True),
    Field("rows", is_detail=True),
    Field("message", get=_reason, column="REASON", line="reason"),
    Field(column="SIZE", shown=lambda item: len(item.rows)),
    wide="REASON",
    unreadable="unreadable",
)


def item(**changes: Any) -> Any:
    values = {
        "name": "a",
        "state": "running",
        "made_at": 0.0,
        "took_s": 61.23456,
        "tags": ("x", "y"),
        "place": None,
        "rows": [1, 2],
        "reason": "",
    }
    return SimpleNamespace(**values | changes)


def test_a_list_has_the_columns_and_leaves_out_optional_ones_without_a_value() -> None:
    lines = plain(VIEW.table([item(), item(name="b", tags=())]))
    assert lines[0].split() == ["NAME", "STATE", "TIME", "TAGS", "REASON", "SIZE"]
    assert lines[1].split() == ["a", "running", "1m", "01s", "x,", "y", "2"]
    assert lines[2].split() == ["b", "running", "1m", "01s", "-", "2"]
    assert "PLACE" in plain(VIEW.table([item(), item(place="here")]))[0]
    assert "TIME" not in plain(VIEW.table([item()], without=("TIME",)))[0]


def test_a_page_has_the_lines_that_have_a_value() -> None:
    facts = VIEW.facts(item(tags=()))
    assert list(facts) == ["name", "state", "made", "took"]
    assert str(facts["state"]) == "running"


def test_json_has_the_values_and_details_on_request() -> None:
    assert VIEW.json(item()) == {
        "name": "a",
        "state": "running",
        "made_at": "1970-01-01T00:00:00+00:00",
        "took_s": 61.235,
        "tags": ["x", "y"],
        "place": None,
        "message": "",
    }
    assert VIEW.json(item(made_at=None))["made_at"] is None
    assert VIEW.json(item(), is_detailed=True)["rows"] == [1, 2]


def test_an_unreadable_item_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    found = [item(reason=None), item(name="b")]
    first, second = plain(VIEW.table(found))[1:]
    assert first.split()[:2] == ["a", "unreadable"]
    assert "its document is empty" in first
    assert second.split()[:2] == ["b", "running"]
    VIEW.print_list("things", found, "none", json=True)
    shown = json.loads(capsys.readouterr().out)["things"]
    assert shown[0] == {"name": "a", "state": "unreadable", "message": "its document is empty"}
    assert shown[1]["state"] == "running"
    with pytest.raises(CorruptError):
        VIEW.json(found[0])


def test_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    VIEW.print_list("things", [], "No things.", json=False)
    assert capsys.readouterr().out == "No things.\n"
    VIEW.print_list("things", [], "No things.", json=True)
    assert json.loads(capsys.readouterr().out) == {"things": []}
