"""Program ``timonel``: global options, streams, Ctrl-C and ``kill``."""

from __future__ import annotations

import io
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from timonel._version import __version__
from timonel.cli.defaults import CONFIG_NAME, read_all, user_file
from timonel.cli.errors import first_rank_reports, print_error, report
from timonel.cli.groups import CONTEXT, LazyGroup
from timonel.cli.settings import GlobalOptions, hoist
from timonel.errors import Interrupted

_REPEAT_S = 1.0
"""Time in which repeated signals are ignored."""

app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
    epilog="Global options may appear anywhere before '--'. Each command has its own --help. "
    "Defaults of options are read from timonel.toml in the current folder.",
)


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        # Not every encoding has the characters of bars and curves; '?' replaces missing ones.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # SIGTERM ends a command like Ctrl-C: it stops its job and drains its server.
    interrupt = _Interrupt()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    code = run(sys.argv[1:])
    # All output is written; a traceback from the interpreter's shutdown would be useless.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(code)


class _Interrupt:
    """Signal handler that interrupts at the first Ctrl-C and ignores rapid repeats.

    Repeats would interrupt the cleanup that the first one started.
    """

    def __init__(self) -> None:
        self._ignores_until = 0.0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now >= self._ignores_until:
            self._ignores_until = now + _REPEAT_S
            raise KeyboardInterrupt


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
            obj=GlobalOptions(),
        )
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - unexpected ones are bugs
        return report(error, args, debug=debug)
    if result == Interrupted.exit_code and not first_rank_reports(None):
        # If Ctrl-C comes outside a command, the parser silently turns it into this exit code.
        print_error("interrupted")
    return result if isinstance(result, int) else 0


@app.callback(invoke_without_command=True)
def options(
    ctx: typer.Context,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            "-w",
            metavar="FOLDER|URI",
            help="Folder or bucket (s3://, gs://) of jobs, runs and models. [default: the nearest "
            ".timonel upwards]",
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
    """Convert data, train Keras scripts as jobs, publish the models and serve them."""
    if version:
        typer.echo(f"timonel {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit
    given = read_all(ctx, names_workspace=workspace is not None)
    ctx.default_map = dict(given.commands)
    ctx.obj = replace(
        GlobalOptions.of(ctx), workspace=workspace or given.workspace, debug=debug, quiet=quiet
    )
    if debug or verbose:
        import logging

        from timonel.logs import configure_logging

        level = logging.DEBUG if debug else logging.INFO
        configure_logging(level, "%(name)s: %(message)s")
        if given.commands or given.workspace:
            files = [each.absolute() for each in (Path(CONFIG_NAME), user_file()) if each.exists()]
            logging.getLogger(__name__).info("options from %s", ", ".join(map(str, files)))
