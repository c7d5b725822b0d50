"""``timonel models``: manage versions in the model repository."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions
from timonel.errors import ModelError, SpecError

if TYPE_CHECKING:
    from timonel.models import ModelRepository, ModelVersion

app = noun("List, show, add, check, optimize and delete model versions.")

MODEL = typer.Argument(help="Model, model/version, or folder of a SavedModel.")


@app.command("list", cls=StyledCommand)
def list_(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only versions of this model.")] = None,
    json: Json = False,
) -> None:
    """List the versions of all models, or of one."""
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json

    repository = _repository(ctx)
    if name is not None:
        repository.get(name)
    names = [name] if name is not None else repository.names()
    found = [version for each in names for version in repository.versions(each)]
    if json:
        print_json({"models": [render.version_json(version) for version in found]})
    elif found:
        console().print(render.version_list(found))
    else:
        typer.echo("No models. Publish one with 'timonel export --name NAME'.")


@app.command(cls=StyledCommand)
def show(ctx: typer.Context, model: Annotated[str, MODEL], json: Json = False) -> None:
    """Show a version: signatures, check results and source."""
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json

    version = _repository(ctx).resolve(model)
    if json:
        print_json(version.describe())
    else:
        console().print(render.version_page(version))


@app.command(cls=StyledCommand)
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Model name.")],
    folder: Annotated[str, typer.Argument(help="SavedModel, or folder with a model.py.")],
    json: Json = False,
) -> None:
    """Publish a SavedModel or Python model as the next version."""
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json
    from timonel.models import ModelRepository
    from timonel.storage import local_path

    settings = GlobalOptions.of(ctx)
    version = ModelRepository(settings.find(create=True).models).add(name, local_path(folder))
    settings.mention_shared_workspace()
    if json:
        print_json(render.version_json(version))
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
        print_json(result.model_dump(mode="json"))
    else:
        console().print(render.check_line(result), soft_wrap=True)
    if result.status == "failed":
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
    it.
    """
    from timonel.cli.render import models as render
    from timonel.cli.render.output import console, print_json
    from timonel.cli.render.progress import Steps
    from timonel.models.runtime_choice import optimize as measure
    from timonel.models.versions import open_version

    # A folder can be opened without a workspace.
    version = open_version(Path(model)) if Path(model).is_dir() else None
    version = version or _repository(ctx).resolve(model)
    with Steps(GlobalOptions.of(ctx).remarks(stderr=json)) as steps:
        steps(f"measuring runtimes for {version}")
        evidence = measure(version, samples)
    if json:
        print_json(evidence.model_dump(mode="json"))
    else:
        console().print(render.evidence_page(evidence))


@app.command(cls=StyledCommand)
def delete(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Version to delete, such as digits/2.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Delete a version; running servers return to the previous one.

    This cannot be undone, and the number is not used again. Asks first on a terminal.
    """
    from timonel.cli.render.output import print_json

    name, _, number = model.rpartition("/")
    if not name or not number.isdecimal():
        raise SpecError(
            f"{model!r} is not a version such as digits/2",
            hint="'timonel models' lists the versions",
        )
    repository = _repository(ctx)
    version = repository.get(name, int(number))
    if not yes and not _is_confirmed(version):
        typer.echo(f"kept {model}")
        raise typer.Exit(1)
    repository.delete(name, int(number))
    left = [version.number for version in repository.versions(name)]
    if json:
        print_json({"deleted": model, "left": left})
        return
    typer.echo(f"deleted {model}; versions left: {', '.join(map(str, left)) or 'none'}")


def _is_confirmed(version: ModelVersion) -> bool:
    """Ask the user to confirm the deletion of a version.

    Raises:
        SpecError: Standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise SpecError(
            f"deleting {version} cannot be undone, and standard input is no terminal to confirm it",
            hint="use --yes to delete it",
        )
    return typer.confirm(f"Delete {version} at {version.uri}? This cannot be undone.")


def _repository(ctx: typer.Context) -> ModelRepository:
    from timonel.models import ModelRepository

    return ModelRepository(GlobalOptions.of(ctx).find().models)
