"""Options that Python, the command line and the reference share."""

from __future__ import annotations

import inspect
from typing import Annotated, TypedDict

import pytest

import timonel
from timonel.options import Option, options_of, with_defaults
from timonel.serving.serve_options import ServeOptions
from timonel.training.settings import OPTION_NAMES, Settings
from timonel.training.train_options import TrainOptions


class Options(TypedDict, total=False):
    size: Annotated[int | None, Option(3, "Size. It is large.", "Panel")]


def test_defaults_are_filled_in() -> None:
    assert with_defaults(Options, {}) == {"size": 3}
    assert with_defaults(Options, {"size": None}) == {"size": None}
    with pytest.raises(TypeError, match="unexpected keyword argument 'sice'"):
        with_defaults(Options, {"sice": 1})  # type: ignore[typeddict-unknown-key]


def test_the_summary_is_the_first_sentence() -> None:
    kind, option = options_of(Options)["size"]
    assert (kind, option.summary) == (int | None, "Size.")


@pytest.mark.parametrize("options", [ServeOptions, TrainOptions])
def test_descriptions_are_sentences(options: type) -> None:
    for name, (_, option) in options_of(options).items():
        assert option.text.endswith("."), name
        assert option.summary in option.text


@pytest.mark.parametrize(
    ("function", "options"), [(timonel.serve, ServeOptions), (timonel.train, TrainOptions)]
)
def test_help_shows_the_options(function, options: type) -> None:
    assert options_of(options).keys() <= inspect.signature(function).parameters.keys()
    for name, (_, option) in options_of(options).items():
        assert f"    {name}: {option.text}" in inspect.getdoc(function)


def test_tasks_have_the_defaults_of_the_options() -> None:
    options = {name: option.default for name, (_, option) in options_of(TrainOptions).items()}
    shared = {name: options[name] for name in OPTION_NAMES if name in options}
    assert set(OPTION_NAMES) - set(shared) == {"min_workers"}
    assert Settings.of(shared) == Settings()
