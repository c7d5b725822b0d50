"""``timonel convert``: convert raw files to a dataset."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from timonel.cli.groups import Json, StyledCommand, single
from timonel.cli.settings import GlobalOptions
from timonel.data.schema import COLUMN_TYPE_NAMES, parse_column_type
from timonel.errors import SpecError

app = single()


@app.command(cls=StyledCommand)
def convert(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="A folder with one folder of images per label, also below train, validation and "
            "test; a table (CSV, Parquet or JSON lines) of rows, or of image files "
            "(split,image_uri,label). A path, a pattern, or a URI (s3://, gs://, https://)."
        ),
    ],
    destination: Annotated[
        str, typer.Argument(help="Folder of the new dataset, or its URI in a bucket.")
    ],
    *,
    kind: Annotated[
        Literal["auto", "images", "table"], typer.Option(help="Type of the source.")
    ] = "auto",
    label: Annotated[str | None, typer.Option(help="Label column of a table.")] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            help="Approximate fractions of train, validation and test; two values are train and "
            "validation. [default: the splits of the source, else 0.8,0.1,0.1]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split and the order.")] = 0,
    shards: Annotated[
        int | None, typer.Option(help="Number of training shards. [default: by size]")
    ] = None,
    shard_bytes: Annotated[str, typer.Option(help="Maximum size of a shard.")] = "64MB",
    compression: Annotated[
        Literal["none", "gzip"], typer.Option(help="Compression of the shards.")
    ] = "none",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing dataset.")
    ] = False,
    max_rejected: Annotated[
        float, typer.Option(help="Greatest fraction of unusable records.")
    ] = 0.01,
    runner: Annotated[str, typer.Option(help="Where shards are written: local or beam.")] = "local",
    beam: Annotated[
        str,
        typer.Option(help="Options of Apache Beam's pipeline.", metavar="NAME=VALUE,..."),
    ] = "",
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Override inferred types of columns: {COLUMN_TYPE_NAMES}; separated by commas, "
            "or repeated.",
            metavar="NAME=TYPE,...",
        ),
    ] = None,
    task: Annotated[
        Literal["classification", "multilabel", "regression"] | None,
        typer.Option(help="Override the inferred task."),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(help="Column of a table whose equal values keep rows in one split."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            help="YAML or JSON file with columns and labels, as of 'timonel data schema', or a "
            "dataset whose columns, labels and vocabularies to keep. Nothing is inferred.",
        ),
    ] = None,
    max_vocabulary: Annotated[
        int, typer.Option(min=1, help="Words of a category or text; rarer ones count as unknown.")
    ] = 1000,
    folders: Annotated[
        Literal["auto", "labels", "splits"],
        typer.Option(help="Meaning of the top-level folders of images."),
    ] = "auto",
    image_size: Annotated[
        str | None,
        typer.Option(
            help="Scale larger images down to cover this size. [default: unchanged]",
            metavar="HEIGHT,WIDTH",
        ),
    ] = None,
    image_format: Annotated[
        Literal["jpeg", "png", "webp"] | None,
        typer.Option("--image-format", help="Re-encode images of other formats."),
    ] = None,
    quality: Annotated[
        int | None, typer.Option(help="Re-encode JPEG and WebP images with this quality (1-100).")
    ] = None,
    check: Annotated[
        Literal["structure", "decode"],
        typer.Option(help="How to check JPEG and PNG images; others are always decoded."),
    ] = "structure",
    allow_http: Annotated[
        bool, typer.Option("--allow-http", help="Read listed images over plain http, too.")
    ] = False,
    allow_private: Annotated[
        bool,
        typer.Option("--allow-private", help="Read listed images from private addresses, too."),
    ] = False,
    delimiter: Annotated[
        str | None,
        typer.Option(help="What separates the values of a CSV file. [default: detected]"),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="Encoding of a CSV or JSON lines file. [default: detected]"),
    ] = None,
    column_names: Annotated[
        str | None,
        typer.Option(help="Column names of a CSV file without a header.", metavar="NAME,..."),
    ] = None,
    json: Json = False,
) -> None:
    """Convert a folder of images or a table to a dataset.

    The dataset is a folder of sharded TFRecords with a manifest. The write is atomic, and the
    same source and seed give identical bytes. Killed or stopped, the same command continues.
    """
    import logging

    import timonel
    from timonel.cli.render import datasets as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Counter
    from timonel.data import summarise

    settings = GlobalOptions.of(ctx)
    # The dataset page shows the warnings, which convert() logs for scripts.
    logging.getLogger("timonel.data.conversion").addHandler(logging.NullHandler())
    with Counter(settings.remarks(stderr=json), "converting", "records") as progress:
        progress.scanning(0, 0)  # reading the table may take long
        dataset = timonel.convert(
            source,
            destination,
            kind=kind,
            label=label,
            splits=None if splits is None else parse_splits(splits),
            seed=seed,
            shards=shards,
            shard_bytes=shard_bytes,
            compression=compression,
            overwrite=overwrite,
            max_rejected=max_rejected,
            runner=runner,
            beam=beam,
            columns=parse_columns(columns or []),
            task=task,
            group_by=group_by,
            schema=schema,
            max_vocabulary=max_vocabulary,
            folders=folders,
            image_size=None if image_size is None else parse_size(image_size),
            image_format=image_format,
            quality=quality,
            check=check,
            allow_http=allow_http,
            allow_private=allow_private,
            delimiter=delimiter,
            encoding=encoding,
            column_names=parse_names(column_names or ""),
            workspace=settings.workspace,
            progress=progress,
            scanning=progress.scanning,
        )
    settings.mention_shared_workspace()
    if json:
        print_json(render.dataset_json(dataset))
        return
    console().print(render.dataset_page(summarise(dataset)))
    settings.remarks().print(
        f"next: timonel train train.py --data {destination}", style="dim", soft_wrap=True
    )


def parse_splits(text: str) -> tuple[float, ...]:
    """Parse comma-separated fractions.

    Raises:
        SpecError: The fractions are not numbers.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise SpecError(
            f"--splits must be numbers with commas such as 0.8,0.1,0.1, got {text!r}"
        ) from None


def parse_size(text: str) -> tuple[int, int]:
    """Parse height and width; one number is both.

    Raises:
        SpecError: They are not whole numbers.
    """
    parts = text.split(",")
    try:
        height, width = (int(part) for part in (parts * 2 if len(parts) == 1 else parts))
    except ValueError:
        raise SpecError(
            f"--image-size must be HEIGHT,WIDTH such as 224,224, got {text!r}"
        ) from None
    return height, width


def parse_names(text: str) -> list[str]:
    """Parse comma-separated names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_columns(words: list[str]) -> dict[str, str]:
    """Parse column types of the form ``NAME=TYPE,...``.

    Raises:
        SpecError: A word has no name or no type.
    """
    types: dict[str, str] = {}
    for word in words:
        pending = ""
        for part in word.split(","):
            name, _, kind = f"{pending}{part}".rpartition("=")
            pending = "" if name else f"{part},"  # a comma within the column's name
            if name:
                parse_column_type(kind)
                types[name.strip()] = kind
        if pending:
            raise SpecError(f"--columns must be NAME=TYPE, got {word!r}")
    return types
