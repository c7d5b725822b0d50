"""Global options, wherever they stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.cli.settings import hoist


@pytest.mark.parametrize(
    ("given_argv", "expected"),
    [
        ([], []),
        (["runs", "--debug"], ["--debug", "runs"]),
        (["runs", "-w", "x", "--json"], ["-w", "x", "runs", "--json"]),
        (["runs", "--workspace=x"], ["--workspace=x", "runs"]),
        (
            ["train", "t.py", "--", "--debug", "-w", "y"],
            ["train", "t.py", "--", "--debug", "-w", "y"],
        ),
        (["runs", "-w"], ["runs", "-w"]),
    ],
)
def test_hoist(given_argv: list[str], expected: list[str]) -> None:
    assert hoist(given_argv) == expected


@given(st.lists(st.sampled_from(["a", "--debug", "-w", "x", "--", "--set"])))
def test_hoist_loses_nothing_and_leaves_the_scripts_words_alone(argv: list[str]) -> None:
    moved = hoist(argv)
    assert sorted(moved) == sorted(argv)
    if "--" in argv:
        assert moved[moved.index("--") :] == argv[argv.index("--") :]
    assert hoist(moved) == moved
