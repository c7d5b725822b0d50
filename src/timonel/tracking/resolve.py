"""From what a person names to a node of the lineage graph, and a look at what is on disk now."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from timonel.errors import NotFoundError, SpecError, TimonelError
from timonel.storage import digest_file, is_local, normalise, read_document
from timonel.storage.workspace import Workspace
from timonel.tracking.artifacts import Artifact
from timonel.tracking.graph import (
    ArtifactNode,
    ArtifactState,
    Direction,
    LineageGraph,
    RunNode,
    build_graph,
)
from timonel.tracking.reading import list_runs, require_readable

_MANIFEST = "manifest.json"
_LEAST_DIGITS = 6
# Beyond it, telling whether a file has changed would take longer than a person waits.
_DIGEST_LIMIT_BYTES = 64 << 20


def lineage(
    workspace: Workspace, ref: str | os.PathLike[str], *, direction: Direction = "both"
) -> LineageGraph:
    """Return where something came from and what came of it, from the records alone.

    Args:
        workspace: Whose runs are looked at.
        ref: The first that fits: a run's id or ``last``; a model ``name`` (its newest version) or
            ``name/version``; a path or URI (of a dataset, a version, a raw file or folder; a file
            inside a recorded folder means that folder); a digest or at least 6 digits of its
            beginning; the beginning of a run's id; a run's name.
        direction: What led to it, what came of it, or both.

    Raises:
        NotFoundError: Nothing of that name is recorded or on disk.
        SpecError: It fits several things.
        FormatError: It is a run that a newer release has recorded.
    """
    require_readable(workspace, os.fspath(ref))
    whole = build_graph(list_runs(workspace))
    found = _resolve(whole, workspace, os.fspath(ref))
    assert found.focus is not None
    return found.around(found.focus, direction).observed(observe)


def observe(node: ArtifactNode) -> ArtifactState | None:
    """Return what is at an artifact's places now: the same, another content, or nothing.

    A dataset is judged by the digest in its manifest, a file by its content; of another folder
    only its being there is looked at. Returns None for what is not on this machine.
    """
    states = {_state_at(uri, node.artifact) for uri in node.uris if is_local(uri)}
    for state in ("present", "changed", "missing"):
        if state in states:
            return state
    return None


def _state_at(uri: str, artifact: Artifact) -> ArtifactState:
    path = Path(uri)
    if not path.exists():
        return "missing"
    if artifact.digest is None:
        return "present"
    now = _digest_now(path)
    return "present" if now in {None, artifact.digest} else "changed"


def _digest_now(path: Path) -> str | None:
    """Return the digest of what is at ``path``, as far as it can be had at once."""
    with contextlib.suppress(OSError):
        if path.is_file() and path.stat().st_size <= _DIGEST_LIMIT_BYTES:
            return digest_file(path)
    return _manifest_digest(path)


def _manifest_digest(path: Path) -> str | None:
    try:
        digest = read_document(path / _MANIFEST, "dataset").get("digest")
    except (TimonelError, OSError, UnicodeDecodeError):
        return None
    return digest if isinstance(digest, str) else None


def _resolve(graph: LineageGraph, workspace: Workspace, ref: str) -> LineageGraph:
    ways: tuple[Callable[[], LineageGraph | None], ...] = (
        lambda: _run(graph, [node for node in graph.runs if node.record.id == ref], ref),
        lambda: _run(graph, graph.runs[-1:], ref) if ref == "last" else None,
        lambda: _model(graph, workspace, ref),
        lambda: _place(graph, ref),
        lambda: _digest(graph, ref),
        lambda: _run(graph, [node for node in graph.runs if node.record.id.startswith(ref)], ref),
        lambda: _run(graph, [node for node in graph.runs if node.record.name == ref][-1:], ref),
    )
    if ref:
        for way in ways:
            found = way()
            if found is not None:
                return found
    raise NotFoundError(
        f"expected a run, model, dataset, file or digest, got {ref!r}, which no record knows",
        hint="'timonel runs' and 'timonel models' list what there is",
    )


def _run(graph: LineageGraph, nodes: Iterable[RunNode], ref: str) -> LineageGraph | None:
    found = list(nodes)
    if len(found) > 1:
        raise _several(ref, [node.record.id for node in found])
    return _focused(graph, found[0].key) if found else None


def _model(graph: LineageGraph, workspace: Workspace, ref: str) -> LineageGraph | None:
    """Return the graph focused on a model version, by ``name`` or ``name/version``."""
    name, _, version = ref.partition("/")
    if version and not version.isdigit():
        return None
    recorded = {
        int(uri.rpartition("/")[2]): node.key
        for node in graph.artifacts
        if node.artifact.type == "model"
        for uri in node.uris
        if uri.split("/")[-2:-1] == [name] and uri.rpartition("/")[2].isdigit()
    }
    folder = workspace.models / name
    on_disk = {
        int(path.name): str(path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.name.isdigit()
    }
    # A name alone is what a server of it would load; of a model that is gone, what it was last.
    numbers = {int(version)} if version else on_disk.keys() or recorded.keys()
    newest = max(numbers & (recorded.keys() | on_disk.keys()), default=None)
    if newest is None:
        return None
    if newest in recorded:
        return _focused(graph, recorded[newest])
    return graph.with_artifact(Artifact("model", on_disk[newest], name=f"{name}/{newest}"))


def _place(graph: LineageGraph, ref: str) -> LineageGraph | None:
    """Return the graph focused on what is, or was, at a path or URI, or at a folder above it."""
    uri = normalise(ref)
    there = [node for node in graph.artifacts if uri in node.uris]
    manifest = _manifest_digest(Path(uri)) if is_local(uri) else None
    if manifest is not None:
        # The dataset that is there now, even if older ones were there before.
        return graph.with_artifact(Artifact("dataset", uri, manifest))
    if there:
        present = [node for node in there if observe(node) != "changed"]
        return _focused(graph, (present or there)[-1].key)
    above = [
        (len(place), number, node.key)
        for number, node in enumerate(graph.artifacts)
        for place in node.uris
        if uri.startswith(f"{place.rstrip('/')}/")
    ]
    # Only what exists, or names a place, may mean the folder above it: a word must not.
    if above and ("/" in ref or os.path.lexists(uri)):
        return _focused(graph, max(above)[2])
    return None


def _digest(graph: LineageGraph, ref: str) -> LineageGraph | None:
    algorithm, _, digits = ref.rpartition(":")
    if len(digits) < _LEAST_DIGITS or algorithm not in {"", "sha256"}:
        return None
    found = [
        node.key
        for node in graph.artifacts
        if node.artifact.digest and node.artifact.digest.rpartition(":")[2].startswith(digits)
    ]
    if len(found) > 1:
        raise _several(ref, found)
    return _focused(graph, found[0]) if found else None


def _focused(graph: LineageGraph, key: str) -> LineageGraph:
    return LineageGraph(graph.nodes, graph.edges, key)


def _several(ref: str, found: list[str]) -> SpecError:
    return SpecError(
        f"expected one thing, got {ref!r}, which fits {len(found)}",
        hint=f"give more of it: {', '.join(found[:3])}",
    )
