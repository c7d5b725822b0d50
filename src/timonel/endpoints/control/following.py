"""Follow an alias: the revision that gives all requests to its version."""

from __future__ import annotations

from timonel.endpoints.spec import EndpointSpec
from timonel.errors import NotFoundError
from timonel.serving.references import versions_at
from timonel.storage import Workspace, join
from timonel.storage.aliases import LATEST, Aliases

_PATIENCE_S = 3.0


def followed(spec: EndpointSpec, workspace: Workspace) -> tuple[EndpointSpec, str] | None:
    """Return the specification after a move of the alias that it follows, and what moved it.

    None if nothing has moved.
    """
    if spec.follow is None:
        return None
    place = spec.model if "/" in spec.model else join(workspace.uri, "models", spec.model)
    if spec.follow == LATEST:
        version, by = max(versions_at(place), default=None), "a new version"
    else:
        changes = Aliases(place, patience_s=_PATIENCE_S)
        latest = changes.latest()
        version = None if latest is None else latest.aliases.get(spec.follow)
        by = "" if latest is None else latest.by
    if version is None:
        raise NotFoundError(f"{spec.model_name} has no {spec.follow} version any more")
    if spec.traffic.percent == {version: 100}:
        return None
    update = {"percent": {version: 100}, "shadow": None}
    traffic = spec.traffic.model_copy(update=update)
    cause = f"follow {spec.model_name}@{spec.follow} to version {version}: {by}"
    return spec.model_copy(update={"traffic": traffic}), cause
