"""``timonel convert``: convert raw files to a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from timonel.cli.groups import Json, LabelCommand, single
from timonel.cli.options import given, takes
from timonel.cli.settings import GlobalOptions
from timonel.data.convert_options import ConvertOptions
from timonel.data.schema import parse_column_type
from timonel.errors import SpecError

app = single()


@app.command(cls=LabelCommand)
@takes(ConvertOptions)
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
    json: Json = False,
    **options: Any,
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
            workspace=settings.workspace,
            progress=progress,
            scanning=progress.scanning,
            **parsed(options),
        )
    settings.mention_shared_workspace()
    if json:
        print_json(render.dataset_json(dataset))
        return
    console().print(render.dataset_page(summarise(dataset)))
    settings.remarks().print(
        f"next: timonel train train.py --data {destination}", style="dim", soft_wrap=True
    )


def parsed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options of a source, with their texts parsed."""
    parsers: dict[str, Callable[[Any], Any]] = {
        "splits": lambda words: parse_splits(",".join(words)),
        "image_size": parse_size,
        "columns": parse_columns,
        "column_names": lambda words: parse_names(",".join(words)),
    }
    return {
        name: parsers[name](value) if name in parsers else value
        for name, value in given(options).items()
    }


def parse_splits(text: str) -> tuple[float, ...]:
    """Parse comma-separated fractions."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise SpecError(
            f"--splits must be numbers with commas such as 0.8,0.1,0.1, got {text!r}"
        ) from None


def parse_size(text: str) -> tuple[int, int]:
    """Parse height and width; one number is both."""
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
    """Parse column types of the form ``NAME=TYPE,...``."""
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
