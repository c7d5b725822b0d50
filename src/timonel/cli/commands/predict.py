"""``timonel predict``: get predictions from a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from timonel.batch.predict_options import BATCH, BatchOptions
from timonel.cli import completion
from timonel.cli.groups import Json, StyledCommand, single
from timonel.cli.options import given, is_given, takes
from timonel.cli.settings import GlobalOptions
from timonel.errors import InputError, SpecError
from timonel.models.safety.trust_options import TrustOptions

app = single()

SINGLE_OPTIONS = ("top", "api_key_file", "tls_ca")
BATCH_OPTIONS = (
    "out",
    *(name for name in BatchOptions.__annotations__ if name not in TrustOptions.__annotations__),
)


@app.command(cls=StyledCommand)
@takes(BatchOptions)
def predict(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="Endpoint, model, model/version, or server as http://HOST:PORT; with --batch a "
            "model, model/version, run, or folder of a SavedModel.",
            autocompletion=completion.models,
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Image files, a CSV, JSON or .npy file of rows, rows as JSON, or texts."
        ),
    ] = None,
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
    batch: Annotated[
        list[str] | None,
        typer.Option(
            help="Folders or files to predict, or patterns: images, lists of images, CSV, JSON "
            "lines, Parquet, TFRecord; or one dataset. Repeat it for several.",
            metavar="PATH",
            rich_help_panel=BATCH,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="File of predictions (.parquet, .jsonl, .csv, .tfrecord), or a folder of shards; "
            "a path, or a URI in a bucket.",
            rich_help_panel=BATCH,
        ),
    ] = None,
    json: Json = False,
    **options: Any,
) -> None:
    """Get predictions from a model for files or rows.

    An endpoint or a running server of the workspace answers. Without one, the model is loaded for
    this call, which takes seconds. With --batch, all rows of files are predicted without a server
    and written to --out; killed or stopped, the same command continues.
    """
    import timonel
    from timonel.cli.render import predictions as render
    from timonel.cli.render.output import console, print_json

    if batch:
        _reject_both(ctx, inputs, SINGLE_OPTIONS)
        if out is None:
            raise SpecError("--batch needs --out", hint="for example --out predictions.parquet")
        _predict_batch(
            ctx,
            json=json,
            model=model,
            inputs=batch,
            out=out,
            version=version,
            **_parsed(options),
        )
        return
    if not inputs:
        raise SpecError("nothing to predict", hint="name files or rows, or use --batch")
    _reject_both(ctx, None, BATCH_OPTIONS)
    if folder := next(filter(os.path.isdir, inputs), None):
        raise SpecError(
            f"{folder} is a folder",
            hint=f"predict its files with --batch {folder} --out predictions.parquet",
        )
    remarks = GlobalOptions.of(ctx).remarks(stderr=True)
    answers = timonel.predict(
        model,
        inputs[0] if len(inputs) == 1 else inputs,
        workspace=GlobalOptions.of(ctx).workspace,
        version=version,
        api_key=None if api_key_file is None else _key_in(api_key_file),
        tls_ca=tls_ca,
        notify=lambda line: remarks.print(line, style="dim", soft_wrap=True),
        **given({name: options[name] for name in TrustOptions.__annotations__}),
    )
    if json:
        print_json({"predictions": [render.prediction_json(each) for each in answers]})
    else:
        console().print(render.predictions_page(answers, top=top), soft_wrap=True)


def _parsed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options, with the names of columns to keep as a list."""
    found = given(options)
    words = ",".join(found.get("keep", ())).split(",")
    return {**found, "keep": [word.strip() for word in words if word.strip()]}


def _reject_both(ctx: typer.Context, inputs: list[str] | None, options: Sequence[str]) -> None:
    """Reject options and inputs of the other kind of prediction."""
    if inputs:
        raise SpecError(
            f"expected either inputs or --batch, got {inputs[0]!r} and --batch",
            hint="repeat --batch for several inputs",
        )
    for name in options:
        if is_given(ctx, name, by_file=False):
            what = "cannot be used with" if name in SINGLE_OPTIONS else "needs"
            raise SpecError(f"--{name.replace('_', '-')} {what} --batch")


def _predict_batch(ctx: typer.Context, *, json: bool, **options: Any) -> None:
    """Predict files, with progress; print a summary."""
    import timonel
    from timonel.cli.render import predictions as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Counter

    settings = GlobalOptions.of(ctx)
    with Counter(settings.remarks(stderr=json), "predicting", "rows") as progress:
        done = timonel.predict_batch(**options, workspace=settings.workspace, progress=progress)
    if json:
        print_json(done)
    else:
        console().print(render.batch_page(done), soft_wrap=True)


def _key_in(path: Path) -> str:
    """Read a key from a file; command lines show in process lists."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the API key in {path}: {error}") from error
    if not key or not key.isprintable() or not key.isascii():
        raise InputError(f"{path} contains no API key")
    return key
