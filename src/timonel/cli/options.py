"""Command-line options of commands whose function takes a ``TypedDict`` of options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import typer

from timonel.cli import completion
from timonel.errors import SpecError
from timonel.options import Option, flag_of, options_of
from timonel.training.train_options import JOB, PROGRAM

ENTRY = typer.Argument(help="Script, notebook, or module name as in 'python -m'.", metavar="ENTRY")
ScriptArgs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Arguments after '--' are passed to the script unchanged.", metavar="[-- ARGS]"
    ),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="Dataset for timonel.data.load(); repeat it with names.",
        metavar="[NAME=]FOLDER",
        rich_help_panel=PROGRAM,
        autocompletion=completion.datasets,
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="Where the job runs: local, or kubernetes.",
        metavar="NAME",
        show_default="this machine",
        rich_help_panel=JOB,
    ),
]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def takes(kind: type) -> Callable[[_Command], _Command]:
    """Return a decorator that adds the options of ``kind`` to a command with ``**options``."""

    def add(command: _Command) -> _Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        added = [_parameter(name, *found) for name, found in options_of(kind).items()]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *added]
        )
        return command

    return add


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that have a value; the function's defaults replace the others."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def parse_data(words: list[str] | None) -> str | dict[str, str] | None:
    """Parse ``--data``: one dataset, several by name, or none."""
    if not words:
        return None
    if len(words) == 1 and not _is_named(words[0]):
        return words[0]
    unnamed = [word for word in words if not _is_named(word)]
    if unnamed:
        raise SpecError(
            f"several datasets need names, got {unnamed[0]!r}",
            hint="give --data NAME=FOLDER, and load(name=NAME) in the script",
        )
    return {name: place for name, _, place in (word.partition("=") for word in words)}


def _is_named(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def is_given(ctx: typer.Context, name: str, *, by_file: bool = True) -> bool:
    """Return whether an option was given: typed, or by a configuration file too."""
    source = ctx.get_parameter_source(name)
    others = {"DEFAULT"} if by_file else {"DEFAULT", "DEFAULT_MAP"}
    return source is not None and source.name not in others


def _parameter(name: str, kind: Any, option: Option) -> inspect.Parameter:
    value = _value_type(kind)
    flag = flag_of(name, option)
    if value is bool and option.default:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    shown = option.computed or (option.default if get_origin(value) is list else None)
    info = typer.Option(
        flag,
        help=option.summary + (f" [default: {shown}]" if shown else ""),
        rich_help_panel=option.panel,
        metavar=option.metavar,
        min=option.least,
    )
    default = option.default
    if default is None or get_origin(value) is list:
        value, default = value | None, None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=str(default) if value is str else default,
        annotation=Annotated[value, info],
    )


def _value_type(kind: Any) -> Any:
    """Return the type that the parser converts to, of those that the function takes."""
    parts = get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
    kinds = [each for each in parts if each is not NoneType]
    origins = [get_origin(each) or each for each in kinds]
    if Sequence in origins or Mapping in origins:
        return list[str]
    if tuple in origins or Any in kinds:
        return str
    if os.PathLike in origins:
        return Path
    return str if str in kinds else kinds[0]
