"""What a script's argument parser gave it becomes parameters of its run."""

from __future__ import annotations

import argparse

import pytest

from timonel.training.worker.program import recording_parameters


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--epochs", type=int, default=10)
    made.add_argument("--batch-size", type=int, default=64)
    made.add_argument("--layers", type=int, nargs="*", default=[1, 2])
    made.add_argument("--note")
    return made


def test_defaults_are_recorded_with_what_was_given(parser, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--epochs=3", "--batch-size=8"])
    found: list[dict] = []
    with recording_parameters(found.append, known={"batch-size"}):
        assert parser.parse_args().epochs == 3
        parser.parse_args(["--epochs", "7"])  # no command line of the script's
    parser.parse_args()
    assert found == [{"epochs": 3, "layers": "[1, 2]"}]


def test_a_command_of_a_script_is_recorded_once(monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "fit", "--lr", "0.1"])
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true")
    fit = parser.add_subparsers(dest="command").add_parser("fit")
    fit.add_argument("--lr", type=float, default=1.0)
    fit.set_defaults(function=print)
    found: list[dict] = []
    with recording_parameters(found.append):
        parser.parse_args()
    assert found == [{"verbose": False, "command": "fit", "lr": 0.1}]
