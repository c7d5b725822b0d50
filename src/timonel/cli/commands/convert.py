"""``timonel convert``: raw files to a dataset."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from timonel.cli.groups import Command, single
from timonel.cli.settings import Settings
from timonel.errors import SpecError

app = single()


@app.command(cls=Command)
def convert(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(help="A folder with one folder of images per label, or a CSV file.")
    ],
    destination: Annotated[str, typer.Argument(help="The dataset's folder, which is made.")],
    *,
    kind: Annotated[
        Literal["auto", "images", "table"], typer.Option(help="What the source is.")
    ] = "auto",
    label: Annotated[
        str | None, typer.Option(help="The column of a CSV file that holds the label.")
    ] = None,
    splits: Annotated[
        str, typer.Option(help="Fractions of train, validation and test.")
    ] = "0.8,0.1,0.1",
    seed: Annotated[int, typer.Option(help="Another seed gives another division and order.")] = 0,
    shards: Annotated[
        int | None, typer.Option(help="Shards of the training split; by size if not given.")
    ] = None,
    shard_bytes: Annotated[str, typer.Option(help="How large a shard may become.")] = "64MB",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a dataset that is at the destination.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be used, and count it.")
    ] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help="The type of a CSV file's column where the inferred one is wrong; repeatable.",
            metavar="NAME=numeric|categorical",
        ),
    ] = None,
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(help="What the label is for, where the inferred one is wrong."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Turn a folder of images or a CSV into a dataset.

    The dataset is a folder of sharded TFRecords with a manifest. It appears whole or not at all,
    and is the same to the byte for the same source and seed.
    """
    import timonel
    from timonel.cli.render import datasets as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Counter
    from timonel.data import summarise

    settings = Settings.of(ctx)
    settings.tell_shared()
    with Counter(settings.remarks(stderr=json), "converting", "records") as progress:
        dataset = timonel.convert(
            source,
            destination,
            kind=kind,
            label=label,
            splits=parse_splits(splits),
            seed=seed,
            shards=shards,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            skip_bad=skip_bad,
            columns=parse_columns(columns or []),
            task=task,
            workspace=settings.workspace,
            progress=progress,
        )
    if json:
        print_json(render.dataset_json(dataset))
        return
    console().print(render.dataset_page(summarise(dataset)))
    settings.remarks().print(
        f"next: timonel train train.py --data {destination}", style="dim", soft_wrap=True
    )


def parse_splits(text: str) -> tuple[float, ...]:
    """Return the fractions that ``text`` lists.

    Raises:
        SpecError: They are no numbers.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise SpecError(
            f"expected --splits as three numbers such as 0.8,0.1,0.1, got {text!r}"
        ) from None


def parse_columns(words: list[str]) -> dict[str, Literal["numeric", "categorical"]]:
    """Return the types of columns that ``words`` name.

    Raises:
        SpecError: One is not of the form NAME=numeric or NAME=categorical.
    """
    types: dict[str, Literal["numeric", "categorical"]] = {}
    for word in words:
        name, _, kind = word.rpartition("=")
        if kind == "numeric" and name:
            types[name] = "numeric"
        elif kind == "categorical" and name:
            types[name] = "categorical"
        else:
            raise SpecError(f"expected --columns as NAME=numeric or NAME=categorical, got {word!r}")
    return types
