"""``timonel predict``: get predictions from a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timonel.cli.groups import Json, StyledCommand, single
from timonel.cli.settings import GlobalOptions
from timonel.errors import InputError

app = single()


@app.command(cls=StyledCommand)
def predict(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Endpoint, model, model/version, or server as http://HOST:PORT.")
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(help="Image files, a CSV or JSON file of rows, or one row as JSON."),
    ],
    *,
    version: Annotated[
        int | None, typer.Option(help="Version to use. [default: the newest that is served]")
    ] = None,
    top: Annotated[int, typer.Option(help="Number of scores to show for a single input.")] = 5,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with an API key or token. [default: the key in TIMONEL_API_KEY]"),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="CA certificates of https servers, in PEM. [default: TIMONEL_TLS_CA]"),
    ] = None,
    json: Json = False,
) -> None:
    """Get predictions from a model for files or rows.

    An endpoint or a running server of the workspace answers. Without one, the model is loaded for
    this call, which takes seconds.
    """
    import timonel
    from timonel.cli.render import predictions as render
    from timonel.cli.render.output import console, print_json

    remarks = GlobalOptions.of(ctx).remarks(stderr=True)
    answers = timonel.predict(
        model,
        inputs[0] if len(inputs) == 1 else inputs,
        workspace=GlobalOptions.of(ctx).workspace,
        version=version,
        api_key=None if api_key_file is None else _key_in(api_key_file),
        tls_ca=tls_ca,
        notify=lambda line: remarks.print(line, style="dim", soft_wrap=True),
    )
    if json:
        print_json({"predictions": [render.prediction_json(each) for each in answers]})
    else:
        console().print(render.predictions_page(answers, top=top), soft_wrap=True)


def _key_in(path: Path) -> str:
    """Read a key from a file; command lines show in process lists."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the API key in {path}: {error}") from error
    if not key or not key.isprintable() or not key.isascii():
        raise InputError(f"{path} contains no API key")
    return key
