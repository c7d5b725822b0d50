"""``timonel predict``: ask a model."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings

app = single()


@app.command(cls=Command)
def predict(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(help="A model, model/version, or a server as http://HOST:PORT.")
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(help="Image files; a CSV or JSON file of rows; or a row as JSON."),
    ],
    *,
    version: Annotated[
        int | None, typer.Option(help="Ask this version, not the newest that is served.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many scores to show of a single input.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask a model about files or rows.

    A running server of the workspace answers; where none serves the model, it is loaded for this
    call, which takes seconds.
    """
    import timonel
    from timonel.cli.render import predictions as render
    from timonel.cli.render.output import console, print_json

    remarks = console(stderr=True)
    answers = timonel.predict(
        model,
        inputs[0] if len(inputs) == 1 else inputs,
        workspace=Settings.of(ctx).workspace,
        version=version,
        notify=lambda line: remarks.print(line, style="dim", soft_wrap=True),
    )
    if json:
        print_json({"predictions": [render.prediction_json(each) for each in answers]})
    else:
        console().print(render.predictions_page(answers, top=top), soft_wrap=True)
