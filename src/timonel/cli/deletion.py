"""Commands that delete: ``delete`` of each noun, and what they print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli.groups import Json, StyledCommand
from timonel.cli.settings import GlobalOptions
from timonel.errors import SpecError

if TYPE_CHECKING:
    from timonel.retention import Removed

Names = Annotated[
    list[str], typer.Argument(help="Names, IDs or versions, as listed.", metavar="NAME")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Also delete what has an alias, or what remaining items were made from."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be deleted, and its size.")
]


def add_delete(app: typer.Typer, noun: str, line: str, details: str) -> None:
    """Add the command ``delete`` of a noun."""

    def delete(
        ctx: typer.Context,
        names: Names,
        *,
        yes: Yes = False,
        force: Force = False,
        dry_run: DryRun = False,
        json: Json = False,
    ) -> None:
        from timonel.retention import delete as delete_items

        report(
            lambda consent: delete_items(
                noun,
                names,
                workspace=GlobalOptions.of(ctx).workspace,
                force=force,
                dry_run=dry_run,
                consent=consent,
            ),
            yes=yes,
            json=json,
            dry_run=dry_run,
        )

    delete.__doc__ = (
        f"{line}\n\n{details} This cannot be undone. Asks first on a terminal. An interrupted "
        "deletion is completed by the next command."
    )
    app.command("delete", cls=StyledCommand)(delete)


def report(
    remove: Callable[[Callable[[Removed], bool]], Removed],
    *,
    yes: bool,
    json: bool,
    dry_run: bool,
) -> None:
    """Delete after the user's consent, and print what went and what stays."""
    from timonel.cli.render import retention as render
    from timonel.cli.render.output import console, print_json

    def consent(removed: Removed) -> bool:
        if yes:
            return True
        what = render.subject(removed)
        if not sys.stdin.isatty():
            raise SpecError(
                f"cannot ask whether to delete {what}: standard input is no terminal",
                hint="use --yes to delete without a question",
            )
        # With --quiet, too: nothing goes that the question does not name.
        console(stderr=True).print(render.removed_page(removed))
        return typer.confirm(f"Delete {what}? This cannot be undone.")

    removed = remove(consent)
    is_refused = bool(removed.deleted) and not (removed.done or dry_run)
    if json:
        print_json(render.removed_json(removed))
    elif dry_run:
        console().print(render.removed_page(removed))
    elif is_refused:
        typer.echo("kept all")
    else:
        typer.echo(f"deleted {render.subject(removed)}")
        if removed.kept and (yes or not removed.deleted):
            console().print(render.kept_table(removed))
    if is_refused:
        raise typer.Exit(1)
