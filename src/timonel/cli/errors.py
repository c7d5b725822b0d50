"""Reports of errors: one line on standard error, and an exit code.

Errors that timonel raises on purpose have the exit code of their class. Any other exception is a
bug: its traceback is written to a file named in that line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from timonel._version import __version__
from timonel.cli.daily import MOST
from timonel.cli.groups import HELP_ALL
from timonel.cli.settings import GlobalOptions
from timonel.errors import (
    InputError,
    Interrupted,
    JobError,
    TimonelError,
    UserCodeError,
    did_you_mean,
)
from timonel.logs import printable

EXIT_BUG = 1
EXIT_USAGE = 2
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}
"""Errors of a disk or its permissions, not bugs of timonel."""
_PATH_ERRORS = {errno.ENAMETOOLONG, errno.ELOOP}
"""Errors of a path that the user typed."""
_SHOWN_PATH = 80
"""Characters shown of a path that is too long."""
_CHOICE = re.compile(r"'[^']*' is not one of .*")
_NUMBERS = re.compile(r"unexpected extra argument(?:s|\(s\))? \([\d. ]+\)$")
_QUOTED = re.compile(r"'([^']*)'")
_RANK_WAIT_S = 5.0
_MPIRUN_PREFIXES = ("OMPI_", "PMI")


def report(error: BaseException, args: Sequence[str], *, debug: bool) -> int:
    """Print an error as one line; return its exit code.

    Args:
        error: The error that ended the command.
        args: The command's arguments.
        debug: Print the traceback too.
    """
    is_expected = isinstance(
        error, (TimonelError, typer.TyperException, typer.Abort, KeyboardInterrupt)
    )
    if debug and not isinstance(error, UserCodeError):
        traceback.print_exception(error)
    if is_expected:
        return _report_expected(error)
    if debug:
        return EXIT_BUG
    # Until Python 3.12, Path.resolve() turns the error of a symlink loop into a RuntimeError.
    cause = error.__context__ if isinstance(error, RuntimeError) else error
    if isinstance(cause, OSError) and cause.errno in _DISK_ERRORS | _PATH_ERRORS:
        return _report_expected(_as_input_error(cause))
    return _report_bug(error, args)


def print_error(message: str) -> None:
    """Print a message as one line on standard error."""
    line = printable(" ".join(message.split()))
    typer.echo(f"{typer.style('error:', fg='red', bold=True)} {line}", err=True)


def _report_expected(error: BaseException) -> int:
    """Print an expected error as one line; return its exit code.

    Prints nothing if another rank reports the error.
    """
    if first_rank_reports(error):
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
        print_error(message)
        return error.exit_code
    if isinstance(error, TimonelError):
        if not (isinstance(error, Interrupted) and error.is_reported):
            print_error(str(error))
        return error.exit_code
    if isinstance(error, typer.TyperException):
        message = _usage_problem(error)
        print_error(f"{message}: {_usage_hint(error, message)}")
        return EXIT_USAGE
    print_error("interrupted")
    return Interrupted.exit_code


def _as_input_error(error: OSError) -> TimonelError:
    place = str(error.filename or tempfile.gettempdir())
    if error.errno == errno.ENAMETOOLONG:
        return InputError(
            f"the path {place[:_SHOWN_PATH]}... of {len(place)} characters is too long",
            hint="use a shorter name",
        )
    if error.errno == errno.ELOOP:
        return InputError(
            f"the path {place} is a loop of symbolic links",
            hint="point the link at a file or folder",
        )
    return InputError(
        f"cannot read or write {place}: {error.strerror}",
        hint="check its permissions and the free disk space",
    )


def _usage_problem(error: typer.TyperException) -> str:
    """Return the message of a wrong option, without the words of pydantic, which validates it."""
    param, cause = getattr(error, "param", None), error.__cause__
    if hasattr(error, "possibilities"):
        return str(error.message)  # without its suggestions: the hint has the nearest
    if param is None or cause is None or not hasattr(cause, "errors"):
        return error.format_message().rstrip(".")
    found = cause.errors()[0]
    rule, is_rule, _ = found["msg"].rpartition("Input should be ")[2].partition(", unable to parse")
    if not is_rule and not found["msg"].startswith("Input should be "):
        return error.format_message().rstrip(".").replace(": Value error, ", ": ")
    name = param.opts[0] if param.param_type_name == "option" else param.name.upper()
    rule = rule.replace("a valid integer", "an integer").replace("a valid number", "a number")
    return f"{name} must be {rule}, got {found['input']!r}"


def _usage_hint(error: typer.TyperException, message: str) -> str:
    if choice := _CHOICE.search(message):
        word, *known = _QUOTED.findall(choice[0])
        if suggestion := did_you_mean(word, known):
            return suggestion
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "timonel"
    if flag := getattr(error, "option_name", None):
        return _option_hint(context, path, flag)
    if path == "timonel convert" and _NUMBERS.search(message):
        return "separate fractions and sizes with commas, such as --splits 0.8,0.1,0.1"
    return f"see '{path} --help'"


def _option_hint(context: Any, path: str, flag: str) -> str:
    """Return the cure for an option that a command does not have."""
    params = [] if context is None else context.command.params
    known = [word[2:] for param in params for word in param.opts if word.startswith("--")]
    served: list[str] = []
    if path == "timonel deploy":
        from timonel.serving.serve_options import ServeOptions

        served = [name.replace("_", "-") for name in ServeOptions.__annotations__]
    name = flag.removeprefix("--")
    if name in served:
        return f"options of 'timonel serve' follow '--', as in: timonel deploy MODEL -- {flag}"
    if close := did_you_mean(name, [*known, *served]):
        return close.replace("'", "'--", 1)
    if path in {"timonel train", "timonel tune"}:
        return f"options of the script follow '--', as in: {path} train.py -- {flag}"
    return f"see '{path} {HELP_ALL if len(known) > MOST else '--help'}'"


def _report_bug(error: BaseException, args: Sequence[str]) -> int:
    """Print an unexpected error as one line that names its traceback file."""
    text = "".join(traceback.format_exception(error))
    path = _write_traceback(f"timonel {__version__}: timonel {' '.join(args)}\n\n{text}", args)
    print_error(
        f"unexpected {type(error).__name__} ({str(error) or 'no message'}), a bug of timonel: "
        f"its traceback is in {path}, or run again with --debug"
    )
    return EXIT_BUG


def _write_traceback(text: str, args: Sequence[str]) -> Path:
    name = f"timonel-error-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    given = args[1] if len(args) > 1 and args[0] in {"--workspace", "-w"} else None
    # The workspace itself may be the cause of the error.
    with contextlib.suppress(Exception):
        folder = GlobalOptions(given).find().root / "errors"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return folder / name
    with tempfile.NamedTemporaryFile("w", suffix=f"-{name}", delete=False) as file:
        file.write(text)
    return Path(file.name)


def first_rank_reports(error: BaseException | None) -> bool:
    """Tell whether the first rank reports this error for all ranks.

    An invalid command line or script fails on every rank. The first rank reports it and exits, and
    then mpirun kills the others, which wait for that. A rank that is not killed within the wait has
    an error of its own to report. Errors after the tasks have run are always the rank's own.

    Args:
        error: The error; None for an interruption.
    """
    if not any(name.startswith(_MPIRUN_PREFIXES) for name in os.environ):
        return False
    from timonel.training.mpi import is_first

    if is_first(os.environ) or isinstance(error, JobError):
        return False
    if error is None or isinstance(error, (Interrupted, KeyboardInterrupt)):
        return True
    try:
        time.sleep(_RANK_WAIT_S)
    except KeyboardInterrupt:  # SIGTERM raises it in a command
        return True
    return False
