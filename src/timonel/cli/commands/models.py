"""``timonel models``: manage versions in the model repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.cli import completion
from timonel.cli.deletion import add_delete
from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.options import given, takes
from timonel.cli.settings import GlobalOptions
from timonel.edge.convert_options import BenchOptions, ModelConvertOptions
from timonel.errors import ModelError, NotFoundError, SpecError

if TYPE_CHECKING:
    from timonel.models import ModelRepository, ModelVersion

app = noun("List, show, add, name, check, convert, bench, optimize and delete model versions.")

MODEL = typer.Argument(
    help="Model, model/version, model@alias, or folder of a SavedModel.",
    autocompletion=completion.models,
)


@app.command("list", cls=StyledCommand)
def list_(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="Only versions of this model.", autocompletion=completion.model_names),
    ] = None,
    json: Json = False,
) -> None:
    """List the versions of all models, or of one."""
    from timonel.cli.render.models import VERSION

    repository = _repository(ctx)
    if name is not None:
        repository.get(name)
    names = [name] if name is not None else repository.names()
    found = [version for each in names for version in repository.versions(each)]
    empty = "No models. Publish one with 'timonel export --name NAME'."
    VERSION.print_list("models", found, empty, json=json)


@app.command(cls=StyledCommand)
def show(ctx: typer.Context, model: Annotated[str, MODEL], json: Json = False) -> None:
    """Show a version: signatures, check results and source."""
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json

    version = _version(ctx, model)
    if json:
        print_json(version.describe())
    else:
        console().print(render.version_page(version))


@app.command(cls=StyledCommand)
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Model name.")],
    source: Annotated[
        str,
        typer.Argument(
            help="SavedModel, folder of versions, .keras, .h5 or .tflite file, or folder with a "
            "model.py; a path, or a URI of a bucket."
        ),
    ],
    json: Json = False,
) -> None:
    """Publish a model made elsewhere as the next version, after one request to it.

    The request has an example of zeros and empty texts. Of a folder of versions, the newest one is
    taken.
    """
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Steps
    from timonel.models.adding import add_model
    from timonel.models.repository import workspace_models

    settings = GlobalOptions.of(ctx)
    repository = workspace_models(settings.find(create=True))
    with Steps(settings.remarks(stderr=json)) as steps:
        version, failure = add_model(repository, name, source, steps)
    settings.mention_shared_workspace()
    if failure is not None:
        settings.remarks(stderr=json).print(f"unchecked: {failure}", style="yellow", soft_wrap=True)
    if json:
        print_json(render.VERSION.json(version))
        return
    console().print(render.version_page(version))
    option = f" --allow-python {name}" if version.is_python else ""
    settings.remarks().print(f"next: timonel serve {name}{option}", style="dim", soft_wrap=True)


@app.command(cls=StyledCommand)
def check(
    ctx: typer.Context,
    model: Annotated[str, MODEL],
    data_root: Annotated[
        str | None, typer.Option(help="New location of the raw files, if they have moved.")
    ] = None,
    json: Json = False,
) -> None:
    """Check that a version predicts the same as in training."""
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json
    from timonel.models import check_version

    result = check_version(_repository(ctx).resolve(model), data_root=data_root)
    if json:
        print_json(result)
    else:
        console().print(render.check_line(result), soft_wrap=True)
    if result.status == "failed":
        raise typer.Exit(ModelError.exit_code)


@app.command(cls=StyledCommand)
@takes(ModelConvertOptions)
def convert(
    ctx: typer.Context, model: Annotated[str, MODEL], json: Json = False, **options: Any
) -> None:
    """Convert a version for phones, microcontrollers or browsers.

    Writes the model with a report of its size, accuracy, latency and memory.
    """
    from timonel.cli.render.conversion import conversion_page
    from timonel.cli.render.output import console, print_json
    from timonel.edge import convert_version

    version = _version(ctx, model)
    remarks = GlobalOptions.of(ctx).remarks(stderr=json)
    remarks.print(f"converting {version} and comparing it with the original", soft_wrap=True)
    made = convert_version(version, **given(options))
    if json:
        print_json({"folder": str(made.folder), **made.report.model_dump(mode="json")})
    else:
        console().print(conversion_page(made))


@app.command(cls=StyledCommand)
@takes(BenchOptions)
def bench(
    ctx: typer.Context,
    model: Annotated[str, MODEL],
    *,
    formats: Annotated[
        str, typer.Option(help="Formats, separated by commas.", metavar="all|FORMAT,...")
    ] = "all",
    plot: Annotated[
        Path | None, typer.Option(help="Draw the comparison.", metavar="FILE.png")
    ] = None,
    json: Json = False,
    **options: Any,
) -> None:
    """Compare formats for devices: size, accuracy and latency."""
    from timonel.cli.render.conversion import bench_table
    from timonel.cli.render.output import console, print_json
    from timonel.edge.bench import check_plot, compare_formats, draw_formats
    from timonel.edge.report import ConversionReport

    settings = GlobalOptions.of(ctx)
    remarks = settings.remarks(stderr=True)
    if plot is not None:
        check_plot(plot)
    chosen = [] if formats == "all" else formats.split(",")
    version = _version(ctx, model)
    found = {}
    for name, result in compare_formats(version, chosen, **given(options)):
        found[name] = result
        remarks.print(
            f"{name}: {'skipped' if isinstance(result, str) else 'measured'}", style="dim"
        )
    if json:
        print_json(
            {
                name: result.model_dump(mode="json", exclude={"worst", "layers"})
                if isinstance(result, ConversionReport)
                else {"error": result}
                for name, result in found.items()
            }
        )
    else:
        console().print(bench_table(found))
    made = [each for each in found.values() if isinstance(each, ConversionReport)]
    if plot is not None:
        draw_formats(plot, made)
    if not made:
        raise typer.Exit(ModelError.exit_code)


@app.command(cls=StyledCommand)
def optimize(
    ctx: typer.Context,
    model: Annotated[str, MODEL],
    samples: Annotated[
        Path | None,
        typer.Option(help="An .npz file with rows of each input. [default: its warm-up requests]"),
    ] = None,
    json: Json = False,
) -> None:
    """Measure runtimes for a version and store the best one in it.

    LiteRT, or TensorFlow without variables, is chosen if its predictions match TensorFlow's and it
    is faster at every batch size. Servers with --runtime auto use the stored choice when they load
    it. Rows of --samples also become the warm-up requests of a version that has none.
    """
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Steps
    from timonel.models.runtime_choice import optimize as measure

    version = _version(ctx, model)
    with Steps(GlobalOptions.of(ctx).remarks(stderr=json)) as steps:
        steps(f"measuring runtimes for {version}")
        evidence = measure(version, samples)
    if json:
        print_json(evidence)
    else:
        console().print(render.evidence_page(evidence))


@app.command(cls=StyledCommand)
def alias(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Model name.", autocompletion=completion.model_names)],
    alias: Annotated[str | None, typer.Argument(help="Alias, such as champion.")] = None,
    version: Annotated[
        str | None, typer.Argument(help="Version number, or an alias that names it.")
    ] = None,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias.")] = False,
    json: Json = False,
) -> None:
    """Give a version an alias; servers and endpoints of MODEL@ALIAS change over.

    Without a version, it shows the aliases and who moved them.
    """
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json

    repository = _repository(ctx)
    if remove and (alias is None or version is not None):
        raise SpecError("--remove takes an alias, and no version")
    if alias is None or (version is None and not remove):
        repository.get(name)
        shown = [
            change for change in repository.aliases(name).history() if alias in {None, change.alias}
        ]
        if json:
            print_json({"history": shown})
        else:
            console().print(render.alias_history(shown))
        return
    number = int(version) if version is not None and version.isdecimal() else version
    change = repository.alias(name, alias, number)
    if json:
        print_json(change)
        return
    now = "removed" if change.version is None else f"version {change.version}"
    before = "" if change.before in {None, change.version} else f", before {change.before}"
    typer.echo(f"{name}@{alias}: {now}{before}")


def _version(ctx: typer.Context, model: str) -> ModelVersion:
    from timonel.models.versions import open_version
    from timonel.storage.aliases import split_alias

    try:
        return _repository(ctx).resolve(model)
    except NotFoundError:
        # A folder can be opened without a workspace.
        place, alias = split_alias(model)
        version = open_version(Path(place), alias) if Path(place).is_dir() else None
        if version is None:
            raise
        return version


def _repository(ctx: typer.Context) -> ModelRepository:
    from timonel.models.repository import workspace_models

    return workspace_models(GlobalOptions.of(ctx).find())


add_delete(
    app,
    "model",
    "Delete versions, or all versions of a name; running servers return to the previous one.",
    "Numbers are not used again. A version with an alias, or of an endpoint, is kept.",
)
