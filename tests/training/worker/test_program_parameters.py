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


@pytest.mark.parametrize(
    ("spelled", "warned"), [("learning_rate", ["learning_rate"]), ("learning-rate", [])]
)
def test_flags_that_no_parser_knows_are_told(monkeypatch, spelled: str, warned: list) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", f"--{spelled}=0.1", "--units", "3"])
    first, second = argparse.ArgumentParser(), argparse.ArgumentParser()
    first.add_argument("--learning-rate", type=float, default=1.0)
    second.add_argument("--units", type=int)
    messages: list[str] = []
    with recording_parameters(lambda _: None, {spelled, "units"}, messages.append):
        first.parse_known_args()
        second.parse_known_args()
    assert len(messages) == len(warned)
    assert all("does not know --learning_rate," in message for message in messages)


def test_flags_that_nothing_parsed_are_not_told(monkeypatch) -> None:
    """The script may read them by other means."""
    monkeypatch.setattr("sys.argv", ["train.py", "--lr=0.1"])
    messages: list[str] = []
    with recording_parameters(lambda _: None, {"lr"}, messages.append):
        pass
    assert messages == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--augment=true", "--no-mixed=1"], (True, False, None)),
        (["--augment=False", "--no-mixed=false"], (False, True, None)),
        (["--warm=True"], (False, True, True)),
        (["--warm=no"], (False, True, False)),
        (["--augment"], (True, True, None)),
    ],
)
def test_parameters_turn_switches_on_and_off(
    monkeypatch: pytest.MonkeyPatch, words: list[str], expected: tuple[bool, bool, bool | None]
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", *words, "--lr=0.1"])
    parser = argparse.ArgumentParser()
    parser.add_argument("--augment", action="store_true")
    parser.add_argument("--no-mixed", dest="mixed", action="store_false")
    parser.add_argument("--warm", action=argparse.BooleanOptionalAction)
    parser.add_argument("--lr", type=float)
    known = {"augment", "no-mixed", "warm", "lr"}
    with recording_parameters(lambda _: None, known):
        found = parser.parse_args()
    assert (found.augment, found.mixed, found.warm, found.lr) == (*expected, 0.1)


@pytest.mark.parametrize("word", ["--augment=maybe", "--other=true"])
def test_other_values_of_switches_are_refused_as_usual(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", word])
    parser = argparse.ArgumentParser()
    parser.add_argument("--augment", action="store_true")
    parser.add_argument("--other", action="store_true")
    with recording_parameters(lambda _: None, {"augment"}), pytest.raises(SystemExit):
        parser.parse_args()
