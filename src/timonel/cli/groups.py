"""Command groups: one that loads its commands when they are asked for, one that lists by default.

Help is written by the plain formatter and coloured afterwards: the rich one takes three times as
long to import as everything else that ``timonel --help`` needs.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from timonel.cli.catalogue import BY_NAME, ENTRIES
from timonel.cli.suggest import did_you_mean
from timonel.errors import Interrupted, SpecError

MAX_HELP_WIDTH = 120
"""Help takes the terminal's width up to this: longer lines are hard to read."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": MAX_HELP_WIDTH}
_HEADING = re.compile(r"^[A-Z][A-Za-z, ]+:", re.MULTILINE)
_TERM = re.compile(r"^  (-\S+(?:, -\S+)*|[a-z]+)(?=\s)", re.MULTILINE)


class Command(TyperCommand):
    """A command whose help has sections of options, and colours where there is a terminal."""

    def get_help(self, ctx: Any) -> str:
        """Return the help text."""
        return colour(super().get_help(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by their panels, in the order of their first options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            is_option = param.param_type_name == "option"
            title = getattr(param, "rich_help_panel", None) or (
                "Options" if is_option else "Arguments"
            )
            if record is not None:
                sections.setdefault(title, []).append(record)
        for title in sorted(sections, key=lambda title: (title != "Arguments", title == "Options")):
            with formatter.section(title):
                formatter.write_dl(sections[title])


class Group(TyperGroup):
    """A group whose help has colours where there is a terminal."""

    def get_help(self, ctx: Any) -> str:
        """Return the help text."""
        return colour(super().get_help(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that ``args`` names.

        Raises:
            SpecError: There is no such command.
        """
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            raise SpecError(
                f"expected a command of '{ctx.command_path}', got '{args[0]}'",
                hint=did_you_mean(args[0], names) or f"see '{ctx.command_path} --help'",
            )
        return super().resolve_command(ctx, args)


class ListingGroup(Group):
    """A noun: without a verb it lists what there is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args``, as those of ``list`` where no verb is named."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class LazyGroup(Group):
    """The top level: a command's module is imported when the command runs."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base class's signature
        """Return the names of all commands, in the order of the help."""
        return [entry.name for entry in ENTRIES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - as above
        """Import and return a command, None if there is no such command."""
        if cmd_name not in BY_NAME:
            return None
        if cmd_name not in self.commands:
            module = importlib.import_module(BY_NAME[cmd_name].module)
            command = typer.main.get_command(module.app)
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
        """Run the command.

        Raises:
            Interrupted: The user pressed Ctrl-C.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted", hint="what was finished is kept") from None


def single() -> typer.Typer:
    """Return the application of a module that has one command."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings=CONTEXT, cls=Group
    )


def noun(line: str) -> typer.Typer:
    """Return the application of a module whose verbs belong to one noun."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings=CONTEXT,
        cls=ListingGroup,
        help=line,
    )
    # A callback makes it a group even while it has one verb.
    app.callback()(_nothing)
    return app


def colour(text: str) -> str:
    """Return help text with headings and terms coloured; echoed to a pipe it is plain again."""
    text = _TERM.sub(lambda match: "  " + typer.style(match.group(1), fg="cyan"), text)
    return _HEADING.sub(lambda match: typer.style(match.group(0), bold=True), text)


def _nothing() -> None:
    """A noun alone does nothing but hold its verbs."""
