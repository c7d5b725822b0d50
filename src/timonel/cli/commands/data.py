"""``timonel data``: list, show and verify datasets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from timonel.cli import completion
from timonel.cli.commands.convert import convert, parsed
from timonel.cli.deletion import add_delete
from timonel.cli.groups import Json, LabelCommand, StyledCommand, noun
from timonel.cli.options import takes
from timonel.cli.settings import GlobalOptions
from timonel.data.convert_options import SchemaOptions

app = noun("Convert, list, show, verify, inspect, compare and delete datasets.")
app.command("convert", cls=LabelCommand)(convert)

DATASET = typer.Argument(
    help="Folder of the dataset, or its URI in a bucket.", autocompletion=completion.datasets
)


@app.command("list", cls=StyledCommand)
def list_(ctx: typer.Context, json: Json = False) -> None:
    """List datasets made by runs of this workspace."""
    from timonel.cli.render.datasets import CONVERTED, Converted
    from timonel.tracking import list_runs

    runs = list_runs(GlobalOptions.of(ctx).find(), kind="convert")
    # The latest run that wrote to a URI counts.
    made = {item.uri: Converted(run, item) for run in reversed(runs) for item in run.outputs}
    empty = "No datasets. Create one with 'timonel convert SOURCE DESTINATION'."
    CONVERTED.print_list("datasets", made.values(), empty, json=json)


@app.command(cls=LabelCommand)
@takes(SchemaOptions)
def schema(
    source: Annotated[str, typer.Argument(help="What 'timonel convert' takes, or a dataset.")],
    json: Json = False,
    **options: Any,
) -> None:
    """Print the schema of a source, for 'timonel convert --schema'.

    Comments say what each column has, and why it has its type. Save the schema, correct it, and
    give it to every conversion of this data: then labels and categories keep their numbers, and
    data that does not match it is rejected.
    """
    from timonel.cli.render.output import print_json
    from timonel.data import schema_of

    found = schema_of(source, **parsed(options))
    if json:
        print_json(found)
    else:
        typer.echo(found.to_yaml(), nl=False)


@app.command(cls=StyledCommand)
def show(dataset: Annotated[str, DATASET], json: Json = False) -> None:
    """Show a dataset: schema, labels and splits."""
    from timonel.cli.render import datasets as render
    from timonel.cli.render.output import console, print_json
    from timonel.data import Dataset, summarise

    opened = Dataset.open(dataset)
    if json:
        print_json(render.dataset_json(opened))
    else:
        console().print(render.dataset_page(summarise(opened)))


@app.command(cls=StyledCommand)
def verify(ctx: typer.Context, dataset: Annotated[str, DATASET], json: Json = False) -> None:
    """Verify every file and record.

    Checks digests, checksums, contents of records, the index and counts; lists all problems. The
    exit code is 3 if there are any.
    """
    from timonel.cli.render import inspection as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Counter
    from timonel.data import verify

    remarks = GlobalOptions.of(ctx).remarks(stderr=True)
    with Counter(remarks, "verifying", "records") as progress:
        found = verify(dataset, progress=progress)
    if json:
        print_json(found)
    else:
        console().print(render.verification_page(found))
    found.check()


@app.command(cls=StyledCommand)
def inspect(
    ctx: typer.Context,
    path: Annotated[str, typer.Argument(help="Folder of a dataset, or any TFRecord file.")],
    *,
    split: Annotated[
        str | None,
        typer.Option(help="Split of the records. [default: train, or all for a key]"),
    ] = None,
    start: Annotated[int, typer.Option(help="Number of the first record, from 0.", min=0)] = 0,
    number: Annotated[int, typer.Option("--number", "-n", help="Number of records.", min=0)] = 5,
    label: Annotated[str | None, typer.Option(help="Only records with this label.")] = None,
    key: Annotated[str | None, typer.Option(help="Only the record with this key.")] = None,
    out: Annotated[
        str | None, typer.Option(help="Write the images to this folder, or URI.", metavar="FOLDER")
    ] = None,
    json: Json = False,
) -> None:
    """Show records: values, and sizes of images.

    For other TFRecord files, first summarizes the features of all records.
    """
    from timonel.cli.render import inspection as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Counter
    from timonel.data import inspect

    remarks = GlobalOptions.of(ctx).remarks(stderr=True)
    with Counter(remarks, "reading", "records") as progress:
        found = inspect(
            path,
            split=split,
            start=start,
            number=number,
            label=label,
            key=key,
            out=out,
            progress=progress,
        )
    if json:
        print_json(render.inspection_json(found))
        return
    console().print(render.inspection_page(found))
    if out is not None:
        typer.echo(f"\n{len(found.images)} images written to {out}")


@app.command(cls=StyledCommand)
def stats(
    ctx: typer.Context,
    dataset: Annotated[str, DATASET],
    *,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    json: Json = False,
) -> None:
    """Show statistics of each column by split.

    Reads all records once.
    """
    from timonel.cli.render import inspection as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Counter
    from timonel.data import stats

    remarks = GlobalOptions.of(ctx).remarks(stderr=True)
    with Counter(remarks, "reading", "records") as progress:
        found = stats(dataset, split=split, progress=progress)
    if json:
        print_json({"splits": {each: value.summary() for each, value in found.items()}})
    else:
        console().print(render.statistics_page(found))


@app.command(cls=StyledCommand)
def report(
    ctx: typer.Context,
    dataset: Annotated[str, DATASET],
    out: Annotated[
        str, typer.Option(help="The page, or its URI in a bucket.", metavar="FILE.html")
    ] = "report.html",
    json: Json = False,
) -> None:
    """Write an HTML page about a dataset.

    It has counts, distributions, missing values, samples, identical records, near-duplicate images
    across splits, and rejected records.
    """
    from timonel.cli.render import inspection as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Counter
    from timonel.data import report

    remarks = GlobalOptions.of(ctx).remarks(stderr=True)
    with Counter(remarks, "reading", "records") as progress:
        found = report(dataset, out, progress=progress)
    if json:
        print_json(found)
    else:
        console().print(render.report_lines(found))


@app.command(cls=StyledCommand)
def diff(
    ctx: typer.Context,
    old: Annotated[str, DATASET],
    new: Annotated[
        str | None, typer.Argument(help="Another dataset. [default: compare the splits of OLD]")
    ] = None,
    *,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split to compare; of one dataset, with train. [default: train of both, or all]"
        ),
    ] = None,
    min_distance: Annotated[
        float, typer.Option(help="Smallest distance that counts as drift, from 0 to 1.")
    ] = 0.05,
    fail_on: Annotated[
        Literal["none", "schema", "drift", "any"],
        typer.Option(help="Differences that make the exit code 1."),
    ] = "none",
    json: Json = False,
) -> None:
    """Compare two datasets, or the splits of one.

    Compares the schema, and the distribution of each column, label and image size: drift between
    datasets, skew between splits. Differences that samples of these sizes have by chance do not
    count.
    """
    from timonel.cli.render import inspection as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Counter
    from timonel.data import diff

    remarks = GlobalOptions.of(ctx).remarks(stderr=True)
    with Counter(remarks, "reading", "records") as progress:
        found = diff(old, new, split=split, min_distance=min_distance, progress=progress)
    if json:
        print_json(render.comparison_json(found))
    else:
        console().print(render.comparison_page(found))
    if found.fails(fail_on):
        raise typer.Exit(1)


add_delete(
    app,
    "dataset",
    "Delete datasets of the workspace; of those elsewhere, only the entry.",
    "Data outside of the workspace stays where it is. So does data that a run was trained on.",
)
