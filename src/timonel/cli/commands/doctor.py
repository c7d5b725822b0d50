"""``timonel doctor``: check this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli.groups import Json, StyledCommand, single
from timonel.cli.settings import GlobalOptions

if TYPE_CHECKING:
    from timonel.checks import Check

app = single()


@app.command(cls=StyledCommand)
def doctor(
    ctx: typer.Context,
    timeout: Annotated[
        float, typer.Option(help="Maximum seconds to load TensorFlow.", min=1)
    ] = 120.0,
    json: Json = False,
) -> None:
    """Check this machine: versions, devices, memory, performance.

    Exits with code 1 if something will not work.
    """
    from timonel.checks import Verdict
    from timonel.cli.doctor.check import as_json, check_lines, summary
    from timonel.cli.render.output import console, print_json

    checks: list[Check] = []
    out = console()
    for check in examine(GlobalOptions.of(ctx).workspace, timeout_s=timeout):
        if not json:
            if not checks or checks[-1].area != check.area:
                out.print(check.area, style="bold")
            out.print(check_lines(check), soft_wrap=True)
        checks.append(check)
    if json:
        print_json(as_json(checks))
    else:
        out.print(summary(checks))
    if any(check.verdict is Verdict.FAIL for check in checks):
        raise typer.Exit(1)


def examine(workspace: str | None = None, *, timeout_s: float = 120.0) -> Iterator[Check]:
    """Yield the checks of this machine as they finish, TensorFlow's last.

    Args:
        workspace: The workspace option; None for the nearest workspace.
        timeout_s: Time limit for loading TensorFlow.
    """
    from timonel.cli.doctor import machine, tensorflow

    yield machine.python()
    yield machine.kernel()
    yield from machine.extras()
    yield machine.cores()
    yield machine.memory()
    yield from machine.disk(workspace)
    yield machine.open_files()
    yield from machine.ports()
    yield machine.event_loop()
    yield machine.json_reader()
    yield machine.shared_memory(Path("/dev/shm"))  # noqa: S108 - looked at, not written
    yield from tensorflow.checks(timeout_s)
