"""Items of a workspace that can be deleted, with what each was made from."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from timonel.endpoints.handle import used_versions
from timonel.engines import DEFAULT_ENGINE
from timonel.engines.local.folder import JobFolder
from timonel.errors import NotFoundError, TimonelError
from timonel.models.repository import ModelRepository, workspace_models
from timonel.models.versions import ModelVersion
from timonel.retention.plan import Item, Key
from timonel.storage import Workspace, is_held, is_local, read_document
from timonel.storage.deletion import Objects
from timonel.storage.documents import parse_document
from timonel.storage.object_store import ObjectStore
from timonel.storage.run_transfer import DELETED
from timonel.tracking import RunRecord, list_runs
from timonel.tracking.graph import ArtifactNode, RunNode, build_graph
from timonel.training.outcomes import with_outcomes
from timonel.tuning.lease import ControllerLease

RUN, JOB, STUDY, DATASET, MODEL, ENDPOINT = "run", "job", "study", "dataset", "model", "endpoint"
_RUNNING = "it is running: stop it first"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where an item is.

    Args:
        objects: Its objects in the workspace's bucket.
        uri: Location of data of the user outside of the workspace, which stays; None for none.
    """

    paths: tuple[Path, ...] = ()
    objects: tuple[Objects, ...] = ()
    uri: str | None = None


@dataclass
class Inventory:
    """Everything in a workspace that can be deleted, and where it is."""

    workspace: Workspace
    items: dict[Key, Item] = field(default_factory=dict)
    places: dict[Key, Place] = field(default_factory=dict)

    def add(self, item: Item, place: Place) -> None:
        """Add an item; of the same key, both are deleted together."""
        known, before = self.items.get(item.key), self.places.get(item.key, Place())
        if known is not None:
            item = replace(item, needs=item.needs | known.needs, parts=item.parts | known.parts)
            place = replace(
                place,
                paths=tuple(dict.fromkeys((*before.paths, *place.paths))),
                objects=tuple(dict.fromkeys((*before.objects, *place.objects))),
            )
        self.items[item.key], self.places[item.key] = item, place


def inventory(workspace: Workspace) -> Inventory:
    """Return what is in a workspace, without its endpoints."""
    found = Inventory(workspace)
    runs = with_outcomes(workspace, list_runs(workspace))
    jobs = _job_names(workspace)
    trials = _trials(runs)
    _add_datasets(found, runs)
    _add_runs(found, runs, jobs)
    for name in sorted(jobs):
        _add_job(found, name, has_run=(RUN, name) in found.items)
    for name in sorted(_study_names(workspace)):
        _add_study(found, workspace.studies / name, trials[name])
    repository, used = workspace_models(workspace), used_versions(workspace)
    for name in repository.names():
        for version in repository.versions(name):
            _add_version(found, repository, version, used)
    return found


def _trials(runs: list[RunRecord]) -> Mapping[str, frozenset[Key]]:
    found: dict[str, set[Key]] = defaultdict(set)
    for run in runs:
        if run.parent is not None:
            found[run.parent].add((RUN, run.id))
    return defaultdict(frozenset, {name: frozenset(keys) for name, keys in found.items()})


def _add_datasets(found: Inventory, runs: list[RunRecord]) -> None:
    """Add the datasets that runs have converted; the data only if it is in the workspace."""
    workspace = found.workspace
    for run in runs:
        for artifact in run.outputs if run.kind == "convert" else ():
            if artifact.type != "dataset":
                continue
            inside = is_local(artifact.uri) and Path(artifact.uri).is_relative_to(workspace.root)
            digest = (artifact.digest or "").removeprefix("sha256:")
            entry = (workspace.datasets / f"{digest}.json",) if digest else ()
            paths = (Path(artifact.uri), *entry) if inside else entry
            own = frozenset({(RUN, run.id)})
            item = Item(
                (DATASET, artifact.uri),
                run.started_at,
                "datasets" if inside else None,
                needs=own if inside else frozenset(),
                parts=own,
            )
            found.add(item, Place(paths, uri=None if inside else artifact.uri))


def _add_runs(found: Inventory, runs: list[RunRecord], jobs: set[str]) -> None:
    workspace, made_from = found.workspace, _made_from(found, runs)
    for run in runs:
        folder = f"runs/{run.id}"
        # Nothing here tells whether a job of another machine lives.
        is_elsewhere = run.header.engine in {None, DEFAULT_ENGINE} and run.id not in jobs
        is_unknown = not run.is_finished and run.job_id is not None and is_elsewhere
        item = Item(
            (RUN, run.id),
            run.started_at,
            # Trials stay as long as their study.
            None if run.parent is not None else f"{run.kind} runs",
            needs=made_from.get(run.id, frozenset()),
            parts=frozenset({(JOB, run.id)} if run.id in jobs else ()),
            pin="its job, which has not ended, is not on this machine" if is_unknown else None,
            block=None if run.is_finished or is_unknown else _RUNNING,
        )
        objects = Objects(folder, ("run.json",), f"{folder}/{DELETED}")
        found.add(item, Place((workspace.runs / run.id,), (objects,)))


def _made_from(found: Inventory, runs: list[RunRecord]) -> dict[str, frozenset[Key]]:
    """Return the runs and datasets that each run read, by its ID."""
    graph = build_graph(runs)
    sources: dict[str, list[str]] = defaultdict(list)
    for start, end in graph.edges:
        sources[end].append(start)
    needs = {}
    for node in graph.runs:
        keys: set[Key] = set()
        for name in sources[node.key]:
            artifact = graph.nodes[name]
            assert isinstance(artifact, ArtifactNode)
            # Predictions are not made from a model: it may be replaced by a better one.
            if artifact.artifact.type == "model":
                continue
            keys |= {(DATASET, uri) for uri in artifact.uris if (DATASET, uri) in found.items}
            for maker in sources[name]:
                made_by = graph.nodes[maker]
                if isinstance(made_by, RunNode):
                    keys.add((RUN, made_by.record.id))
        needs[node.record.id] = frozenset(keys - {(RUN, node.record.id)})
    return needs


def _job_names(workspace: Workspace) -> set[str]:
    names = {path.name for path in workspace.jobs.glob("[!.]*") if path.is_dir()}
    if workspace.local_copy is not None:
        names |= set(workspace.local_copy.store.folders("jobs"))
    return names


def _add_job(found: Inventory, name: str, *, has_run: bool) -> None:
    """Add the folder of a job: its logs, checkpoints and export."""
    folder, block = JobFolder(found.workspace.jobs / name), None
    run = found.items.get((RUN, name))
    created_at = 0.0 if run is None else run.created_at
    with contextlib.suppress(NotFoundError):  # of another machine, or being submitted
        try:
            record = folder.read()
        except TimonelError as error:
            _logger.warning("cannot read the job %s: %s", name, error)
        else:
            created_at = created_at or record.status.created_at
            block = _RUNNING if record.is_supervised else None
    item = Item(
        (JOB, name),
        created_at,
        None if has_run or not created_at else "jobs",
        block=(None if run is None else run.block) or block,
    )
    objects = Objects(f"jobs/{name}", ("spec.json", "export/export.json"))
    found.add(item, Place((folder.root,), (objects,)))


def _study_names(workspace: Workspace) -> set[str]:
    names = {path.parent.name for path in workspace.studies.glob("[!.]*/study.json")}
    if workspace.local_copy is not None:
        names |= set(workspace.local_copy.store.folders("studies"))
    return names


def _created_at(folder: Path, store: ObjectStore | None) -> float:
    """Return when a study was created; 0.0 if its settings cannot be read."""
    try:
        if store is None:
            return float(read_document(folder / "study.json", "study")["created_at"])
        content = store.read(f"studies/{folder.name}/study.json").decode(errors="replace")
        return float(parse_document(content, "study", store.uri)["created_at"])
    except (TimonelError, KeyError, TypeError, ValueError) as error:
        _logger.warning("cannot read the study %s: %s", folder.name, error)
        return 0.0


def _add_study(found: Inventory, folder: Path, trials: frozenset[Key]) -> None:
    name, copy = folder.name, found.workspace.local_copy
    created_at = _created_at(folder, None if copy is None else copy.store)
    runs = is_held(folder / "controller.lock")
    if copy is not None and not runs:
        runs = ControllerLease(copy.store, folder, lambda: None).is_alive
    item = Item(
        (STUDY, name),
        created_at,
        "studies" if created_at else None,
        needs=trials,
        parts=trials,
        block=_RUNNING if runs else None,
    )
    lock = folder.with_name(f".{name}.lock")
    objects = Objects(f"studies/{name}", ("study.json",))
    found.add(item, Place((folder, lock), (objects,)))


def _add_version(
    found: Inventory,
    repository: ModelRepository,
    version: ModelVersion,
    used: Mapping[tuple[str, int], str],
) -> None:
    document = version.document
    pin = used.get((version.name, version.number))
    if version.aliases:
        pin = f"it has the alias {', '.join(version.aliases)}"
    needs: set[Key] = set()
    if document is not None:
        origin = document.provenance
        runs = [origin.get("run_id"), origin.get("export_run_id")]
        dataset = origin.get("dataset") or {}
        needs = {(RUN, str(each)) for each in runs if each}
        needs.add((DATASET, str(dataset.get("uri"))))
        if pin is not None and origin.get("job_id"):
            needs.add((JOB, str(origin["job_id"])))
    item = Item(
        (MODEL, str(version)),
        document.created_at if document is not None else version.path.stat().st_mtime,
        f"versions of {version.name}",
        needs=frozenset(needs),
        pin=pin,
    )
    path, objects = repository.place(version.name, version.number)
    found.add(item, Place((path,), objects))
