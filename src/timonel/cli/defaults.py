"""Option defaults from ``timonel.toml`` in the current directory, and from the user's own file.

Each command has a table that maps long option names to values; ``workspace`` is at the top level:

    workspace = "work"
    [train]
    workers = 2
    set = { lr = 0.01 }
    [runs.list]
    limit = 50

The command line takes precedence over the environment, both over the current directory's file, and
all over the user's, ``~/.config/timonel/timonel.toml``. A project may come from somebody else, so
its file cannot set what protects this user: `PROTECTIVE` options.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timonel.cli.catalogue import BY_NAME
from timonel.errors import InputError, SpecError, did_you_mean

CONFIG_NAME = "timonel.toml"
PROTECTIVE = frozenset(
    """
    allow-host allow-http allow-op allow-private allow-python allow-reload api-key-file api-keys
    batching beam config deploy.image force host jwt-audience jwt-claim jwt-issuer jwt-jwks
    model-cache no-api-keys no-jwt no-server-args no-tls op-library plain-http rate-limit raw
    request-log safe-loading tls-ca tls-cert tls-client-ca tls-key total-rate-limit trust-proxy yes
    """.split()  # noqa: SIM905 - three dozen lines otherwise
)
"""Options of any command, or of the named one, that decide who may do what: what models may run,
who is let in and how often, whom the user trusts, which addresses are read, where requests are
kept, and what is deleted or written without a check."""
PROTECTIVE_COMMANDS = ("keys", "cluster.rbac")
"""Commands whose options all decide it."""
VARIABLES = {
    "workspace": "TIMONEL_WORKSPACE",
    "predict.api-key-file": "TIMONEL_API_KEY",
    "predict.tls-ca": "TIMONEL_TLS_CA",
    "train.wandb-project": "WANDB_PROJECT",
    "train.threads": "TF_NUM_INTRAOP_THREADS",
    "tune.threads": "TF_NUM_INTRAOP_THREADS",
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


def user_file() -> Path:
    """Return the path of the user's own file."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home, "timonel", CONFIG_NAME)


def read_all(ctx: Any, *, names_workspace: bool) -> Defaults:
    """Return the defaults of both files for the command that ``ctx`` invokes."""
    own = read_defaults(ctx, user_file(), is_users=True)
    here = Path(CONFIG_NAME)
    if here.absolute() == user_file().absolute():
        return own
    project = read_defaults(ctx, here)
    if project.workspace is not None and not names_workspace:
        _check_workspace(project.workspace)
    return Defaults(project.workspace or own.workspace, _merged(own.commands, project.commands))


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for name, value in over.items():
        before = found.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            found[name] = _merged(before, value)
        else:
            found[name] = value
    return found


def read_defaults(ctx: Any, path: Path, *, is_users: bool = False) -> Defaults:
    """Return one file's defaults of the command that ``ctx`` invokes.

    Args:
        path: The file; may be missing.
        is_users: Whether it is the user's own, which may set all options.
    """
    content = _content(path, is_users=is_users)
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
    values = _values(path, ctx, name, command, content[name], is_users=is_users)
    return Defaults(workspace, {name: values})


def _content(path: Path, *, is_users: bool) -> dict[str, Any] | None:
    """Parse the file; None if it does not exist."""
    # Reading a FIFO would wait for a writer; a project's link could lead to a file that only seems
    # to be the user's.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if is_users else os.O_NOFOLLOW)
    try:
        with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - checks what it reads
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise InputError(f"{path} is not a regular file", hint="remove or rename it")
            _check_owner(path, found)
            return tomllib.load(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"{path} is a link", hint="copy the file instead") from error
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error


def _check_owner(path: Path, found: os.stat_result) -> None:
    from timonel.storage.ownership import check_own

    check_own(path, f"remove it, or make it yours: 'chmod o-w {path}'", found)


def _check_workspace(location: str) -> None:
    """Refuse a workspace that another user could have prepared, as the nearest one."""
    from timonel.storage import is_local, local_path
    from timonel.storage.ownership import check_own

    if is_local(location) and (path := local_path(location)).exists():
        check_own(path, f"if you trust it, name it: --workspace {location}")


def _values(
    path: Path, ctx: Any, name: str, command: Any, table: Mapping[str, Any], *, is_users: bool
) -> Any:
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
            found[verb] = _values(path, ctx, f"{name}.{verb}", below, inner, is_users=is_users)
        return found
    options = _options(command)
    values = {}
    for key, value in table.items():
        if key not in options:
            raise _unknown(path, f"{name}.{key}", options, "option")
        is_protective = key in PROTECTIVE or f"{name}.{key}" in PROTECTIVE
        if not is_users and (is_protective or name.startswith(PROTECTIVE_COMMANDS)):
            raise SpecError(
                f"{path}: {name}.{key} must not come from the current folder",
                hint=f"give --{key} on the command line, or set it in {user_file()}",
            )
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
