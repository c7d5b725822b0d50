"""Names of the workspace that a shell completes at the Tab key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import typer

from timonel.errors import TimonelError
from timonel.storage import Workspace, find_workspace

Completer = Callable[[typer.Context, str], list[str]]
_LAST = "last"


def _completer(names: Callable[[Workspace], Iterable[str | None]]) -> Completer:
    """Return what the parser asks for the words that continue an incomplete one."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        given: dict[str, Any] = ctx.find_root().params
        try:
            # Without the network: a shell waits for the answer.
            workspace = find_workspace(given.get("workspace"), create=False, offline=True)
            found = dict.fromkeys(filter(None, names(workspace)))
        except (TimonelError, OSError):
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


@_completer
def runs(workspace: Workspace) -> Iterable[str | None]:
    """Names and IDs of runs, newest first."""
    from timonel.tracking.reading import list_headers

    headers = list_headers(workspace)
    return [_LAST, *(each.name for each in headers), *(each.id for each in headers)]


@_completer
def studies(workspace: Workspace) -> Iterable[str]:
    """Names of studies."""
    from timonel.tuning.studies import list_studies

    return [_LAST, *(study.name for study in list_studies(workspace))]


@_completer
def models(workspace: Workspace) -> Iterable[str]:
    """Names of models, and their versions."""
    from timonel.models.repository import workspace_models

    repository = workspace_models(workspace)
    names = repository.names()
    return [
        *names,
        *(f"{name}/{each.number}" for name in names for each in repository.versions(name)),
    ]


@_completer
def model_names(workspace: Workspace) -> Iterable[str]:
    """Names of models."""
    from timonel.models.repository import workspace_models

    return workspace_models(workspace).names()


@_completer
def endpoints(workspace: Workspace) -> Iterable[str]:
    """Names of endpoints."""
    from timonel.endpoints import list_endpoints

    return [each.name for each in list_endpoints(workspace)]


@_completer
def datasets(workspace: Workspace) -> Iterable[str]:
    """Locations of the datasets that runs of the workspace have made."""
    from timonel.styles import from_here
    from timonel.tracking import list_runs

    made = (item for run in list_runs(workspace, "convert") for item in run.outputs)
    return [from_here(item.uri) for item in made if item.type == "dataset"]
