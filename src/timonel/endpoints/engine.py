"""The engine that runs a workspace's endpoints, and where their documents are."""

from __future__ import annotations

import contextlib
import functools

from timonel.engines import (
    DEFAULT_ENGINE,
    ServiceEngine,
    get_service_engine,
    service_engine_names,
    service_engine_type,
)
from timonel.errors import AlreadyExistsError, EngineError, NotFoundError, SpecError
from timonel.storage import Workspace
from timonel.storage.document_store import DocumentStore

FOLDER = "endpoints"
LOCATION = "workspace/location.json"
"""Document with the workspace whose endpoints a cluster's namespace has."""


@functools.lru_cache(maxsize=16)
def engine_of(workspace: Workspace) -> ServiceEngine:
    """Return the engine of a workspace's endpoints.

    Those of a folder run on this machine. Those of a bucket run on the installed engine that does
    not: a bucket is what a cluster and the machines of its users have in common.
    """
    if not workspace.is_remote:
        return get_service_engine(DEFAULT_ENGINE, workspace)
    names = _names_for_clusters()
    if len(names) != 1:
        raise SpecError(
            f"endpoints of a workspace in a bucket need one engine for clusters, "
            f"found {', '.join(names) or 'none'}",
            hint="uninstall the others" if names else "use a local folder: --workspace FOLDER",
        )
    engine = get_service_engine(names[0], workspace)
    _check_owner(engine, workspace)
    return engine


def check_engine(workspace: Workspace, on: str | None) -> ServiceEngine:
    """Return the engine of a workspace's endpoints, if it is the one that the user names.

    Args:
        on: Name of the engine; None: this machine.
    """
    name = on or DEFAULT_ENGINE
    is_one_machine = service_engine_type(name).is_one_machine
    if is_one_machine and workspace.is_remote:
        others = (f"--on {each}" for each in _names_for_clusters())
        raise SpecError(
            f"endpoints on this machine need a workspace in a folder, not {workspace.uri}",
            hint=" or ".join(["give --workspace FOLDER", *others]),
        )
    if not is_one_machine and not workspace.is_remote:
        raise SpecError(
            f"{name} cannot read the workspace {workspace.uri}",
            hint="use a workspace in a bucket, --workspace s3://BUCKET/FOLDER, or a folder that "
            "its pods mount",
        )
    return engine_of(workspace)


def _names_for_clusters() -> list[str]:
    return [n for n in service_engine_names() if not service_engine_type(n).is_one_machine]


def claim(workspace: Workspace) -> None:
    """Record that an engine of several machines has the endpoints of a workspace."""
    engine = engine_of(workspace)
    if not engine.is_one_machine:
        with contextlib.suppress(AlreadyExistsError):
            engine.documents(FOLDER).create_bytes(LOCATION, workspace.uri.encode())
        _check_owner(engine, workspace)


def _check_owner(engine: ServiceEngine, workspace: Workspace) -> None:
    try:
        owner = engine.documents(FOLDER).read_bytes(LOCATION).decode()
    except NotFoundError:
        return  # it has none
    if owner != workspace.uri:
        raise EngineError(
            f"{engine.name} has the endpoints of another workspace here: {owner}",
            hint=f"use --workspace {owner}, or another namespace",
        )


def documents_of(workspace: Workspace) -> DocumentStore:
    """Return the documents of a workspace's endpoints."""
    return engine_of(workspace).documents(FOLDER)
