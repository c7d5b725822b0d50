"""Resolve a user's reference to a lineage node, and check its state."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from timonel.errors import NotFoundError, SpecError, TimonelError
from timonel.storage import is_local, join, normalise, quick_digest, read_document
from timonel.storage.aliases import LATEST, Aliases, split_alias, version_named
from timonel.storage.workspace import Workspace
from timonel.tracking.graph import (
    ArtifactNode,
    ArtifactState,
    Direction,
    LineageGraph,
    RunNode,
    build_graph,
)
from timonel.tracking.reading import list_runs, require_readable
from timonel.tracking.records import Artifact

_MANIFEST = "manifest.json"
_LEAST_DIGITS = 6


def lineage(
    workspace: Workspace, ref: str | os.PathLike[str], *, direction: Direction = "both"
) -> LineageGraph:
    """Return the origins and uses of a run, model or artifact.

    Reads the run records alone.

    Args:
        workspace: The workspace of the runs.
        ref: The first match of: a run's ID or ``last``; a model ``name`` (its newest version),
            ``name/version`` or ``name@alias``; a path or URI (of a dataset, a version, a raw file
            or folder; a file inside a recorded folder means that folder); a digest or at least its
            first 6 digits; a prefix of a run's ID; a run's name.
        direction: The origins, the uses, or both.

    Raises:
        NotFoundError: Nothing with this name is recorded or on disk.
        SpecError: Several things match.
        FormatError: A newer release recorded the run.
    """
    if workspace.local_copy is not None:
        workspace.local_copy.runs.pull()
    require_readable(workspace, os.fspath(ref))
    whole = build_graph(list_runs(workspace))
    found = _resolve(whole, workspace, os.fspath(ref))
    assert found.focus is not None
    around = found.around(found.focus, direction)
    outdated = _outdated(whole)

    def state(node: ArtifactNode) -> ArtifactState | None:
        seen = observe(node)
        return "changed" if seen == "present" and node.key in outdated else seen

    return around.observed(state)


def _outdated(graph: LineageGraph) -> set[str]:
    """Return digests of files that a later run of the same kind found changed, as many as before.

    Other runs may have read other files of the same place.
    """
    latest: dict[tuple[str, str, int], str] = {}
    found: set[str] = set()
    for run in graph.runs:
        for artifact in run.record.inputs:
            if artifact.digest and (files := artifact.metadata.get("files")):
                place = (artifact.uri, run.record.kind, files)
                found.add(latest.get(place, artifact.digest))
                found.discard(artifact.digest)
                latest[place] = artifact.digest
    return found


def observe(node: ArtifactNode) -> ArtifactState | None:
    """Return the current state of an artifact's locations: present, changed or missing.

    A dataset is compared by the digest in its manifest, a file by its content; other folders only
    have to exist. Returns None for artifacts that are not on this machine.
    """
    states = {_state_at(uri, node.artifact) for uri in node.uris if is_local(uri)}
    for state in ("present", "changed", "missing"):
        if state in states:
            return state
    return None


def _state_at(uri: str, artifact: Artifact) -> ArtifactState:
    path = Path(uri)
    if not path.exists():
        return "present" if any(glob.iglob(uri, recursive=True)) else "missing"  # noqa: PTH207
    if artifact.digest is None:
        return "present"
    now = _digest_now(path)
    # A notebook's digest leaves out its outputs, that of a list is of the files that it names.
    known = {None, artifact.digest, artifact.metadata.get("file_digest")}
    return "present" if now in known else "changed"


def _digest_now(path: Path) -> str | None:
    """Return the digest of ``path`` if computable quickly, else None."""
    with contextlib.suppress(OSError):
        if (digest := quick_digest(path)) is not None:
            return digest
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
        lambda: _place(graph, workspace, ref),
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
        f"no run, model, dataset, file or digest matches {ref!r}",
        hint="list them with 'timonel runs' and 'timonel models'",
    )


def _run(graph: LineageGraph, nodes: Iterable[RunNode], ref: str) -> LineageGraph | None:
    found = list(nodes)
    if len(found) > 1:
        raise _several(ref, [node.record.id for node in found])
    return _focused(graph, found[0].key) if found else None


def _model(graph: LineageGraph, workspace: Workspace, ref: str) -> LineageGraph | None:
    """Return the graph focused on a model version, by ``name``, with its number or an alias."""
    text, alias = split_alias(ref)
    name, _, version = text.partition("/")
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
    if alias not in {None, LATEST} and on_disk:
        version = str(
            version_named(alias, Aliases(join(workspace.uri, "models", name)).read(), name)
        )
    # A name alone means the version that a server would load, or the last one of a deleted model.
    numbers = {int(version)} if version else on_disk.keys() or recorded.keys()
    newest = max(numbers & (recorded.keys() | on_disk.keys()), default=None)
    if newest is None:
        return None
    if newest in recorded:
        return _focused(graph, recorded[newest])
    return graph.with_artifact(Artifact("model", on_disk[newest], name=f"{name}/{newest}"))


def _place(graph: LineageGraph, workspace: Workspace, ref: str) -> LineageGraph | None:
    """Return the graph focused on the artifact at a path or URI.

    Falls back to the artifact of a pattern of it, or of a folder above it.
    """
    uri = normalise(ref)
    there = [node for node in graph.artifacts if uri in node.uris]
    manifest = _manifest_digest(Path(uri)) if is_local(uri) else None
    if manifest is not None:
        # The current dataset, even if older ones were recorded at this path.
        return graph.with_artifact(Artifact("dataset", uri, manifest))
    if there:
        present = [node for node in there if observe(node) != "changed"]
        return _focused(graph, (present or there)[-1].key)
    above = [
        (len(place), number, node.key)
        for number, node in enumerate(graph.artifacts)
        for place in node.uris
        # The folder of files all over the machine says nothing about another one.
        if (uri.startswith(f"{place.rstrip('/')}/") and not workspace.root.is_relative_to(place))
        or _matches(uri.split("/"), place.split("/"))
    ]
    # Only existing files, or references with a slash, may match a folder above: a plain word must
    # not.
    if above and ("/" in ref or os.path.lexists(uri)):
        return _focused(graph, max(above)[2])
    return None


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether a path matches a pattern; ``**`` is any number of folders."""
    if not parts or not pattern:
        return not parts and not pattern
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


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
        f"{ref!r} matches {len(found)} runs or artifacts",
        hint=f"give a longer prefix: {', '.join(found[:3])}",
    )
