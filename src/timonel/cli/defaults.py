"""Option defaults from ``timonel.toml`` in the current directory.

Each command has a table that maps long option names to values; ``workspace`` is at the top level:

    workspace = "work"
    [train]
    workers = 2
    set = { lr = 0.01 }
    [runs.list]
    limit = 50

The command line takes precedence over the environment, and both over the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timonel.cli.catalogue import BY_NAME
from timonel.errors import InputError, SpecError, did_you_mean

CONFIG_NAME = "timonel.toml"
VARIABLES = {
    "workspace": "TIMONEL_WORKSPACE",
    "predict.api-key-file": "TIMONEL_API_KEY",
    "predict.tls-ca": "TIMONEL_TLS_CA",
    "train.wandb-project": "WANDB_PROJECT",
    "train.threads": "TF_NUM_INTRAOP_THREADS",
    "serve.op-threads": "TF_NUM_INTRAOP_THREADS",
}
"""Environment variables of settings, which override the file's values."""
_WORKSPACE = "workspace"


@dataclass(frozen=True)
class Defaults:
    """Content of a configuration file.

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
    content = _content(path)
    if content is None:
        return Defaults()
    workspace = content.pop(_WORKSPACE, None)
    if workspace is not None and not isinstance(workspace, str):
        raise SpecError(
            f"{path}: workspace must be a string, got {workspace!r}", hint='as in workspace = "w"'
        )
    if os.environ.get(VARIABLES[_WORKSPACE]):
        workspace = None
    for name, table in content.items():
        if name not in BY_NAME:
            if isinstance(table, dict):
                raise _unknown(path, name, BY_NAME, "command")
            raise SpecError(
                f"{path}: {name} is not in a command's table",
                hint="put options under their command, as in [train]",
            )
        if not isinstance(table, dict):
            raise _no_table(path, name, table)
    name = ctx.invoked_subcommand
    if name not in content:
        return Defaults(workspace)
    command = ctx.command.get_command(ctx, name)
    return Defaults(workspace, {name: _values(path, ctx, name, command, content[name])})


def _content(path: Path) -> dict[str, Any] | None:
    """Parse the file; None if it does not exist."""
    try:
        if path.exists() and not path.is_file():  # reading a FIFO would wait for a writer
            raise InputError(f"{path} is not a regular file", hint="remove or rename it")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error


def _values(path: Path, ctx: Any, name: str, command: Any, table: Mapping[str, Any]) -> Any:
    """Map a command's table to parameter names, a group's to commands."""
    if hasattr(command, "list_commands"):
        found = {}
        for verb, inner in table.items():
            verbs = command.list_commands(ctx)
            if verb in verbs and not isinstance(inner, dict):
                raise _no_table(path, f"{name}.{verb}", inner)
            if verb not in verbs:
                raise SpecError(
                    f"{path}: {name}.{verb} is no command of {name}",
                    hint=(did_you_mean(verb, verbs) if isinstance(inner, dict) else None)
                    or f"as in [{name}.{verbs[0]}]; it has: {', '.join(verbs)}",
                )
            below = command.get_command(ctx, verb)
            found[verb] = _values(path, ctx, f"{name}.{verb}", below, inner)
        return found
    options = _options(command)
    values = {}
    for key, value in table.items():
        if key not in options:
            raise _unknown(path, f"{name}.{key}", options, "option")
        param = options[key]
        default = _value(path, f"{name}.{key}", param, value)
        if not os.environ.get(VARIABLES.get(f"{name}.{key}", "")):
            values[param.name] = default
    return values


def _options(command: Any) -> dict[str, Any]:
    """Return the options of a command by long name."""
    return {
        word.removeprefix("--"): param
        for param in command.params
        if param.param_type_name == "option"
        for word in param.opts
        if word.startswith("--") and word != "--help"
    }


def _value(path: Path, key: str, param: Any, value: Any) -> Any:
    """Convert a TOML value to command-line form: one or more strings."""
    if param.multiple and isinstance(value, dict):
        return [f"{name}={_text(each)}" for name, each in value.items()]
    if param.multiple:
        return [_text(each) for each in (value if isinstance(value, list) else [value])]
    if param.is_flag != isinstance(value, bool):
        expected = "true or false" if param.is_flag else "a value"
        raise SpecError(f"{path}: {key} must be {expected}, got {value!r}")
    if isinstance(value, list | dict):
        raise SpecError(f"{path}: {key} must be one value, got {value!r}")
    return value if param.is_flag else _text(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _no_table(path: Path, key: str, value: Any) -> SpecError:
    is_list = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    what = f"[[{key}]] is a list of tables" if is_list else f"{key} is not a table"
    return SpecError(f"{path}: {what}", hint=f"write [{key}]")


def _unknown(path: Path, key: str, known: Iterable[str], what: str) -> SpecError:
    hint = did_you_mean(key.rpartition(".")[2], known) or f"it is one of {', '.join(known)}"
    return SpecError(f"{path}: unknown {what} {key}", hint=hint)
