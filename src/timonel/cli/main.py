"""Program ``timonel``: global options, and errors reported in one line.

Errors that timonel raises on purpose end as one line on standard error with the exit code of their
class. Any other exception is a bug: its traceback is written to a file named in that line.
"""

from __future__ import annotations

import contextlib
import errno
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from timonel._version import __version__
from timonel.cli import process
from timonel.cli.defaults import CONFIG_NAME, read_defaults
from timonel.cli.groups import CONTEXT, LazyGroup
from timonel.cli.ranks import is_told_by_first
from timonel.cli.settings import Settings, hoist
from timonel.cli.suggest import did_you_mean
from timonel.errors import InputError, Interrupted, TimonelError, UserCodeError

EXIT_DEFECT = 1
EXIT_USAGE = 2
_OF_THE_PLACE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}
"""Errors of a disk or its permissions, not bugs of timonel."""

_CHOICE = re.compile(r"'[^']*' is not one of .*")
_QUOTED = re.compile(r"'([^']*)'")

app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
    epilog="Put the options above anywhere before '--'. Each command has its own --help. "
    "Defaults of options are read from timonel.toml in the current folder.",
)


def main() -> None:
    """Run the command line and exit."""
    process.begin()
    code = run(sys.argv[1:])
    process.end()
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit code.

    Errors are printed as one line.

    Args:
        argv: The arguments after the program's name.
    """
    args = hoist(argv)
    # Parsed here as well, because an error may occur before the options are parsed.
    debug = "--debug" in args[: args.index("--") if "--" in args else None]
    try:
        result = typer.main.get_command(app)(
            args,
            prog_name="timonel",
            standalone_mode=False,
            obj=Settings(),
        )
    except (TimonelError, typer.TyperException, typer.Abort, KeyboardInterrupt) as error:
        if debug and not isinstance(error, UserCodeError):
            traceback.print_exc()
        return _report(error)
    except Exception as error:  # noqa: BLE001 - the last place: whatever comes here is a defect
        if isinstance(error, OSError) and error.errno in _OF_THE_PLACE and not debug:
            return _report(_out_of_place(error))
        return _report_defect(error, args, debug=debug)
    if result == Interrupted.exit_code and not is_told_by_first(None):
        # If Ctrl-C comes outside a command, the parser silently turns it into this exit code.
        _print_error("interrupted")
    return result if isinstance(result, int) else 0


@app.callback(invoke_without_command=True)
def options(
    ctx: typer.Context,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            "-w",
            metavar="FOLDER",
            help="Folder of jobs, runs and models. [default: the nearest .timonel upwards]",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results only: no progress, no hints.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log to standard error.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug logs.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Turn a folder of images or a CSV file into a versioned TensorFlow endpoint."""
    if version:
        typer.echo(f"timonel {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit
    given = read_defaults(ctx, Path(CONFIG_NAME))
    ctx.default_map = dict(given.commands)
    ctx.obj = replace(
        Settings.of(ctx), workspace=workspace or given.workspace, debug=debug, quiet=quiet
    )
    if debug or verbose:
        import logging

        level = logging.DEBUG if debug else logging.INFO
        logging.basicConfig(level=level, format="%(name)s: %(message)s")
        if given.commands or given.workspace:
            logging.getLogger(__name__).info("options from %s", Path(CONFIG_NAME).absolute())


def _report(error: BaseException) -> int:
    """Print an expected error as one line; return its exit code.

    Prints nothing if another rank reports the error.
    """
    if is_told_by_first(error):
        return getattr(error, "exit_code", EXIT_USAGE)
    if isinstance(error, UserCodeError) and error.hint is None:
        # The message is the user's own traceback; another line would only push it up.
        typer.echo(error.message, err=True)
        return error.exit_code
    if isinstance(error, UserCodeError):
        # Output of the script before it exited, above the error line.
        said, _, message = str(error).rpartition("\n")
        if said:
            typer.echo(said, err=True)
        _print_error(message)
        return error.exit_code
    if isinstance(error, TimonelError):
        if not (isinstance(error, Interrupted) and error.is_told):
            _print_error(str(error))
        return error.exit_code
    if isinstance(error, typer.TyperException):
        # The parser validates with pydantic, whose prefix carries no information.
        message = error.format_message().rstrip(".").replace(": Value error, ", ": ")
        _print_error(f"{message}: {_usage_hint(error, message)}")
        return EXIT_USAGE
    _print_error("interrupted")
    return Interrupted.exit_code


def _out_of_place(error: OSError) -> TimonelError:
    place = error.filename or tempfile.gettempdir()
    return InputError(
        f"expected to read or write {place}, got {error.strerror}",
        hint="look at its permissions and at the space that is left",
    )


def _usage_hint(error: typer.TyperException, message: str) -> str:
    if choice := _CHOICE.search(message):
        word, *known = _QUOTED.findall(choice[0])
        if suggestion := did_you_mean(word, known):
            return suggestion
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "timonel"
    if path == "timonel train" and "No such option" in message:
        return "options of the script follow '--', as in: timonel train train.py -- --epochs 3"
    return f"see '{path} --help'"


def _report_defect(error: Exception, args: Sequence[str], *, debug: bool) -> int:
    """Print an unexpected error as one line naming its traceback file."""
    if debug:
        traceback.print_exc()
        return EXIT_DEFECT
    text = "".join(traceback.format_exception(error))
    place = _write_traceback(f"timonel {__version__}: timonel {' '.join(args)}\n\n{text}", args)
    reason = str(error) or "no message"
    _print_error(
        f"unexpected {type(error).__name__} ({reason}), a defect of timonel: "
        f"its traceback is in {place}, or run again with --debug"
    )
    return EXIT_DEFECT


def _write_traceback(text: str, args: Sequence[str]) -> Path:
    name = f"timonel-error-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    given = args[1] if len(args) > 1 and args[0] in {"--workspace", "-w"} else None
    # The workspace itself may be the cause of the error.
    with contextlib.suppress(Exception):
        folder = Settings(given).find().root / "errors"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return folder / name
    with tempfile.NamedTemporaryFile("w", suffix=f"-{name}", delete=False) as file:
        file.write(text)
    return Path(file.name)


def _print_error(message: str) -> None:
    line = " ".join(message.split())
    typer.echo(f"{typer.style('error:', fg='red', bold=True)} {line}", err=True)
