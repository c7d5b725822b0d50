"""Option defaults from ``timonel.toml`` in the current folder.

Each command has a table that maps long option names to values; ``workspace`` is at the top level:

    workspace = "work"
    [train]
    workers = 2
    set = { lr = 0.01 }
    [runs.list]
    limit = 50

Options on the command line override them.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timonel.cli.catalogue import BY_NAME
from timonel.errors import InputError, SpecError

CONFIG_NAME = "timonel.toml"
_WORKSPACE = "workspace"


@dataclass(frozen=True)
class Defaults:
    """The contents of a configuration file.

    Attributes:
        workspace: The workspace; None if the file has none.
        commands: Parameter values of the invoked command, in the form of click's ``default_map``.
    """

    workspace: str | None = None
    commands: Mapping[str, Any] = field(default_factory=dict)


def read_defaults(ctx: Any, path: Path) -> Defaults:
    """Return the defaults of the command that ``ctx`` invokes.

    Args:
        ctx: The top-level click context.
        path: The file; may be missing.

    Raises:
        InputError: The file cannot be read.
        SpecError: The file is not TOML, or names an unknown command or option.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Defaults()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error
    workspace = content.pop(_WORKSPACE, None)
    if workspace is not None and not isinstance(workspace, str):
        raise SpecError(
            f"{path}: workspace is no text: {workspace!r}", hint='as in workspace = "w"'
        )
    for name, table in content.items():
        if name not in BY_NAME or not isinstance(table, dict):
            raise _unknown(path, name, [*BY_NAME, _WORKSPACE], "command")
    name = ctx.invoked_subcommand
    if name not in content:
        return Defaults(workspace)
    command = ctx.command.get_command(ctx, name)
    return Defaults(workspace, {name: _values(path, ctx, name, command, content[name])})


def _values(path: Path, ctx: Any, name: str, command: Any, table: Mapping[str, Any]) -> Any:
    """Map a command's table to parameter names; a group's table to its commands."""
    if hasattr(command, "list_commands"):
        found = {}
        for verb, inner in table.items():
            verbs = command.list_commands(ctx)
            if verb not in verbs or not isinstance(inner, dict):
                raise SpecError(
                    f"{path}: expected a table for a command of {name}, got {name}.{verb}",
                    hint=f"as in [{name}.{verbs[0]}]; it has: {', '.join(verbs)}",
                )
            below = command.get_command(ctx, verb)
            found[verb] = _values(path, ctx, f"{name}.{verb}", below, inner)
        return found
    options = {
        word.removeprefix("--"): param
        for param in command.params
        if param.param_type_name == "option"
        for word in param.opts
        if word.startswith("--") and word != "--help"
    }
    values = {}
    for key, value in table.items():
        if key not in options:
            raise _unknown(path, f"{name}.{key}", list(options), "option")
        param = options[key]
        values[param.name] = _value(path, f"{name}.{key}", param, value)
    return values


def _value(path: Path, key: str, param: Any, value: Any) -> Any:
    """Convert a TOML value to its command-line form: a string, or a list of strings."""
    if param.multiple and isinstance(value, dict):
        return [f"{name}={_text(each)}" for name, each in value.items()]
    if param.multiple:
        return [_text(each) for each in (value if isinstance(value, list) else [value])]
    if param.is_flag != isinstance(value, bool):
        expected = "true or false" if param.is_flag else "a value"
        raise SpecError(f"{path}: expected {key} to be {expected}, got {value!r}")
    if isinstance(value, list | dict):
        raise SpecError(f"{path}: expected {key} to be one value, got {value!r}")
    return value if param.is_flag else _text(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(path: Path, key: str, known: list[str], what: str) -> SpecError:
    close = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(known)}"
    return SpecError(f"{path} names no {what} of timonel: {key}", hint=hint)
