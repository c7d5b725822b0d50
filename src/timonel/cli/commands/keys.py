"""``timonel keys``: manage API keys of servers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions
from timonel.errors import NotFoundError, SpecError

app = noun("Create, list and revoke API keys of servers.")

FILE = typer.Option("--file", help="File of keys. [default: api-keys.json of the workspace]")


@app.command(cls=StyledCommand)
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the client in logs.")],
    *,
    admin: Annotated[
        bool,
        typer.Option(
            "--admin", help="Also permit reloads of the list of models, and its configuration."
        ),
    ] = False,
    expires: Annotated[
        str | None, typer.Option(help="Lifetime of the key, such as 90d. [default: unlimited]")
    ] = None,
    file: Annotated[Path | None, FILE] = None,
    json: Json = False,
) -> None:
    """Create a key and print it once.

    Running servers accept it immediately.
    """
    from timonel.cli.render.output import console, print_json
    from timonel.serving.auth.keys import change_entries, new_key
    from timonel.serving.settings.auth import Right
    from timonel.units import parse_seconds

    if not name.strip():
        raise SpecError("the key needs a name")
    right = Right.ADMIN if admin else Right.USE
    now = time.time()
    end = None if expires is None else now + parse_seconds(expires)
    key, entry = new_key(name, right, now=now, expires=end)
    path = _path(ctx, file)
    entries = change_entries(path, lambda entries: [*entries, entry])
    others = [each.id for each in entries if each.name == name and each is not entry]
    if json:
        print_json({"id": entry.id, "name": name, "key": key, "file": str(path)})
        return
    typer.echo(key)
    console(stderr=True).print(
        f"shown only now: {path} contains only its hash",
        style="dim",
        soft_wrap=True,
    )
    if others:
        console(stderr=True).print(
            f"{name} also has {', '.join(others)}: 'timonel keys revoke ID' revokes a key",
            style="yellow",
            soft_wrap=True,
        )


@app.command("list", cls=StyledCommand)
def list_(
    ctx: typer.Context,
    file: Annotated[Path | None, FILE] = None,
    json: Json = False,
) -> None:
    """List keys and their rights."""
    from timonel.cli.render.keys import KEY
    from timonel.serving.auth.keys import read_entries

    try:
        entries = read_entries(_path(ctx, file))
    except NotFoundError:
        if file is not None:
            raise
        entries = ()
    empty = "No keys. Create one with 'timonel keys create NAME'."
    KEY.print_list("keys", entries, empty, json=json)


@app.command(cls=StyledCommand)
def revoke(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help="Key ID, or a name that only one key has.")],
    file: Annotated[Path | None, FILE] = None,
    json: Json = False,
) -> None:
    """Revoke a key; running servers refuse it within a second."""
    from timonel.cli.render.output import print_json
    from timonel.serving.auth.keys import KeyRecord, change_entries

    path = _path(ctx, file)
    if not path.exists():
        raise NotFoundError(
            f"no key file at {path}", hint="create a key with 'timonel keys create NAME'"
        )
    revoked: list[KeyRecord] = []

    def without(entries: tuple[KeyRecord, ...]) -> list[KeyRecord]:
        found = [e for e in entries if e.id == key] or [e for e in entries if e.name == key]
        if not found:
            raise NotFoundError(f"{path} has no key {key!r}", hint="'timonel keys list' lists them")
        if len(found) > 1:
            ids = ", ".join(entry.id for entry in found)
            raise SpecError(f"several keys have the name {key!r}", hint=f"use one of the IDs {ids}")
        revoked.extend(found)
        return [entry for entry in entries if entry is not found[0]]

    change_entries(path, without)
    if json:
        print_json({"id": revoked[0].id, "name": revoked[0].name, "file": str(path)})
        return
    typer.echo(f"revoked {revoked[0].id} of {revoked[0].name}")


def _path(ctx: typer.Context, file: Path | None) -> Path:
    if file is not None:
        return file
    return GlobalOptions.of(ctx).find(create=True).root / "api-keys.json"
