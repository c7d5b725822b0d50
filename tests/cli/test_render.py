"""What results look like, without a terminal."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from timonel.cli.render.output import console
from timonel.cli.render.tables import bar, printable, sparkline, table
from timonel.styles import number


def plain(renderable: RenderableType, width: int = 80) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(renderable)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_sparkline_spans_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, math.nan, 2]) == "▁·█"
    assert sparkline([2, 2]) == "▄▄"
    assert sparkline([]) == ""
    assert sparkline([math.nan]) == "·"


@given(st.lists(st.floats(), max_size=200), st.integers(1, 40))
def test_a_sparkline_is_as_long_as_its_values_but_never_too_wide(values, width: int) -> None:
    assert len(sparkline(values, width)) == min(len(values), width)


@given(st.floats(), st.integers(0, 50))
def test_a_bar_has_its_width(share: float, width: int) -> None:
    assert len(bar(share, width)) == width


def test_a_bar_is_filled_by_its_share() -> None:
    assert bar(0.5, 4) == "██░░"
    assert bar(2.0, 2) == "██"


def test_a_table_fits_and_cuts_only_its_wide_column() -> None:
    lines = plain(table(("ID", "TEXT", "N"), [("x" * 30, "y" * 90, 1.23456)], wide=1))
    assert all(len(line) <= 80 for line in lines)
    assert "x" * 30 in lines[1]
    assert "…" in lines[1]
    assert lines[1].endswith("1.235")


def test_a_pipe_gets_whole_cells(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    console().print(table(("ID", "REASON"), [("x", "y " * 200)], wide=1))
    assert "y " * 200 in capsys.readouterr().out


def test_cells_have_no_control_codes() -> None:
    assert plain(table(("N",), [("\x1b[31mred\x1b[0m\x1b[2J\x07 \x9b2J[b]",)]))[1] == "red 2J[b]"


def test_headers_are_no_markup() -> None:
    assert plain(table(("[/bold]", "[red]"), [(1, 2)]))[0].split() == ["[/bold]", "[red]"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.96667, "0.9667"), (152.13, "152.1"), (3.2e-5, "3.2e-05"), (1.0, "1")]
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_printable_texts_have_no_control_characters() -> None:
    assert str(printable("a\x1b[31mb\x07c")) == "abc"
