"""``timonel servers``: list and stop running servers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions
from timonel.errors import NotFoundError, ServingError, SpecError

if TYPE_CHECKING:
    from timonel.serving import ServerRecord

app = noun("List and stop running servers.")

POLL_S = 0.1


@app.command("list", cls=StyledCommand)
def list_(
    ctx: typer.Context,
    json: Json = False,
) -> None:
    """List running servers."""
    from timonel.cli.render.servers import SERVER
    from timonel.serving.server_records import running_servers

    found = running_servers(GlobalOptions.of(ctx).find().servers)
    empty = "No servers are running. Start one with 'timonel serve MODEL'."
    SERVER.print_list("servers", found, empty, json=json)


@app.command(cls=StyledCommand)
def stop(
    ctx: typer.Context,
    server: Annotated[
        list[str], typer.Argument(help="Process IDs of servers, or all models that one serves.")
    ],
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it ends.")] = 60.0,
    json: Json = False,
) -> None:
    """Stop servers after they finish pending requests."""
    from timonel.cli.render.output import print_json
    from timonel.serving.server_records import running_servers

    found = running_servers(GlobalOptions.of(ctx).find().servers)
    for word in server:
        if not any(word in (str(each.pid), *each.models) for each in found):
            raise NotFoundError(
                f"no running server matches {word!r}", hint="'timonel servers' lists them"
            )
    matched = [each for each in found if {str(each.pid), *each.models} & {*server}]
    chosen = _without_replicas(matched, " ".join(server))
    for each in chosen:
        _check_models(each, server)
    for each in chosen:
        os.kill(each.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    for each in chosen:
        while each.is_alive:
            if time.monotonic() > deadline:
                raise ServingError(
                    f"server {each.pid} still runs after {timeout:g} s",
                    hint=f"see its log: {each.log}",
                )
            time.sleep(POLL_S)
        if not json:
            typer.echo(f"stopped server {each.pid} of {', '.join(each.models)}")
    if json:
        print_json({"stopped": [{"pid": s.pid, "models": list(s.models)} for s in chosen]})


def _check_models(record: ServerRecord, words: Sequence[str]) -> None:
    """Reject to stop a server that also serves other models than those named."""
    others = [name for name in record.models if name not in words]
    if others and str(record.pid) not in words:
        raise SpecError(
            f"server {record.pid} also serves {', '.join(others)}",
            hint=f"stop it with 'timonel servers stop {record.pid}'",
        )


def _without_replicas(chosen: list[ServerRecord], text: str) -> list[ServerRecord]:
    """Return the servers that are no replicas; endpoints would start those again."""
    from timonel.endpoints.spec import endpoint_of

    found = [each for each in chosen if each.replica is None]
    if not found:
        names = sorted({endpoint_of(each.replica) for each in chosen if each.replica})
        raise SpecError(
            f"{text} runs as replicas of the endpoint {', '.join(names)}, which starts them again",
            hint=f"use 'timonel endpoints scale {names[0]}' or 'timonel endpoints delete "
            f"{names[0]}'",
        )
    return found
