"""Command classes: groups with lazy loading, and with ``list`` as the default command.

Help is written by the plain formatter and coloured afterwards: importing the rich formatter takes
three times as long as everything else that ``timonel --help`` needs.
"""

from __future__ import annotations

import importlib
import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from timonel.cli.catalogue import BY_NAME, ENTRIES
from timonel.cli.daily import DAILY, EXAMPLES
from timonel.errors import Interrupted, SpecError, did_you_mean

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HELP_ALL = "--help-all"
MAX_HELP_WIDTH = 120
"""Maximum help width: longer lines are hard to read."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": MAX_HELP_WIDTH}
_METAVARS = {"str": "TEXT", "int": "N", "float": "N", "path": "PATH"}
_TYPE = re.compile(rf"<(?:list\[)?({'|'.join(_METAVARS)})(?: range)?\]?>")
_HEADING = re.compile(r"^[A-Z][A-Za-z, ]+:", re.MULTILINE)
_TERM = re.compile(r"^  (-\S+(?:, -\S+)*|[a-z]+)(?=\s)", re.MULTILINE)


class StyledCommand(TyperCommand):
    """Command whose help has option sections, an example, and colours on a terminal.

    Of many options, ``--help`` shows the daily ones and ``--help-all`` all.
    """

    _shows_all = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args``; ``--help-all`` prints the whole help and ends the command."""
        if HELP_ALL in args[: args.index("--") if "--" in args else None]:
            self._shows_all = True
            typer.echo(self.get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """Return the help text."""
        return colour(super().get_help(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the example, and how many options are not shown."""
        with formatter.section("Example"):
            # Not wrapped, so that it can be copied.
            formatter.write(f"{'':{formatter.current_indent}}{EXAMPLES[_path(ctx)]}\n")
        if hidden := len(self.get_params(ctx)) - len(self._shown(ctx)):
            formatter.write_paragraph()
            formatter.write_text(f"'{ctx.command_path} {HELP_ALL}' shows {hidden} more options.")

    def _shown(self, ctx: Any) -> list[Any]:
        """Return the parameters that the help shows."""
        params = self.get_params(ctx)
        daily = DAILY.get(_path(ctx), "").split()
        if self._shows_all or not daily:
            return params
        words = {"--help", *(f"--{name}" for name in daily)}
        return [
            each for each in params if each.param_type_name == "argument" or words & {*each.opts}
        ]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage: arguments in capitals, optional ones in brackets."""
        pieces = [self.options_metavar or ""]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                many = "..." if param.nargs != 1 else ""
                name = f"{_name(param)}{many}"
                pieces.append(name if param.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments first, then option panels in order of first use."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self._shown(ctx):
            record = help_record(param, ctx)
            is_option = param.param_type_name == "option"
            title = getattr(param, "rich_help_panel", None) or (
                "Options" if is_option else "Arguments"
            )
            if record is not None:
                sections.setdefault(title, []).append(record)
        for title in sorted(sections, key=lambda title: (title != "Arguments", title == "Options")):
            with formatter.section(title):
                formatter.write_dl(sections[title])


class LabelCommand(StyledCommand):
    """Command that takes one ``--label``; a second one would replace the first without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args``."""
        if sum(each.partition("=")[0] == "--label" for each in args) > 1:
            raise SpecError(
                "--label: a dataset has one label column",
                hint="make further targets of other columns in the script, with "
                "load(features='columns').map(...)",
            )
        return super().parse_args(ctx, args)


def help_record(param: Any, ctx: Any) -> tuple[str, str] | None:
    """Return the term and text of a parameter's help, with metavars instead of Python types."""
    record = param.get_help_record(ctx)
    if record is None:
        return None
    term, text = record
    if param.param_type_name == "argument":
        return _name(param), text
    return _TYPE.sub(lambda match: _METAVARS[match[1]], term), text


def _path(ctx: Any) -> str:
    """Return the command's name below the program, such as ``runs list``."""
    return str(ctx.command_path.partition(" ")[2])


def _name(argument: Any) -> str:
    name: str = argument.metavar or argument.name.upper()
    return name


class Group(TyperGroup):
    """Group whose help has colours on a terminal."""

    def get_help(self, ctx: Any) -> str:
        """Return the help text."""
        return colour(super().get_help(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command named by ``args``."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            raise SpecError(
                f"'{ctx.command_path}' has no command '{args[0]}'",
                hint=did_you_mean(args[0], names) or f"see '{ctx.command_path} --help'",
            )
        return super().resolve_command(ctx, args)


class ListingGroup(Group):
    """Group of one noun's commands that runs ``list`` by default, if it has that."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args``, as arguments of ``list`` if they name no command."""
        is_listing = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        if is_listing and "list" in self.commands:
            args = ["list", *args]
        return super().parse_args(ctx, args)


class LazyGroup(Group):
    """Top-level group that imports a command's module when the command runs."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base class's signature
        """Return the names of all commands, in help order."""
        return [entry.name for entry in ENTRIES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command, or None if it does not exist."""
        if cmd_name not in BY_NAME:
            return None
        if cmd_name not in self.commands:
            module = importlib.import_module(BY_NAME[cmd_name].module)
            command: Any = typer.main.get_command(module.app)
            if BY_NAME[cmd_name].group:
                command = command.get_command(ctx, cmd_name)
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as above
        """Write the commands by section, from the catalogue."""
        for section in dict.fromkeys(entry.section for entry in ENTRIES):
            rows = [(entry.name, entry.line) for entry in ENTRIES if entry.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None


def single() -> typer.Typer:
    """Return the application of a module with a single command."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings=CONTEXT, cls=Group
    )


def noun(line: str) -> typer.Typer:
    """Return the application of a module with several commands for one noun."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings=CONTEXT,
        cls=ListingGroup,
        help=line,
    )
    # A callback makes it a group even if it has only one command.
    app.callback()(_nothing)
    return app


def colour(text: str) -> str:
    """Colour headings and terms of a help text.

    Echo strips the colours outside terminals.
    """
    text = _TERM.sub(lambda match: "  " + typer.style(match.group(1), fg="cyan"), text)
    return _HEADING.sub(lambda match: typer.style(match.group(0), bold=True), text)


def _nothing() -> None:
    """Callback without effect."""
