"""``timonel doctor``: check this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings

app = single()


@app.command(cls=Command)
def doctor(
    ctx: typer.Context,
    timeout: Annotated[
        float, typer.Option(help="Maximum seconds to load TensorFlow.", min=1)
    ] = 120.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine: versions, devices, memory, performance.

    Exits with code 1 if something will not work.
    """
    from timonel.cli.doctor import Check, Verdict, examine
    from timonel.cli.render import doctor as render
    from timonel.cli.render.output import console, print_json

    checks: list[Check] = []
    out = console()
    for check in examine(Settings.of(ctx).workspace, timeout_s=timeout):
        if not json:
            if not checks or checks[-1].area != check.area:
                out.print(f"[bold]{check.area}[/bold]")
            out.print(render.check_lines(check), soft_wrap=True)
        checks.append(check)
    if json:
        print_json(render.as_json(checks))
    else:
        out.print(render.summary(checks))
    if any(check.verdict is Verdict.FAIL for check in checks):
        raise typer.Exit(1)
