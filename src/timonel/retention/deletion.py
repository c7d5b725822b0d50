"""Delete runs, jobs, studies, datasets, model versions and endpoints; prune what is old.

inventory -> plan -> the user's consent -> one deletion of all folders and objects
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from timonel.endpoints.handle import open_endpoint
from timonel.errors import NotFoundError, SpecError
from timonel.models.repository import workspace_models
from timonel.models.versions import VERSION_NUMBER
from timonel.retention.items import (
    DATASET,
    ENDPOINT,
    JOB,
    MODEL,
    RUN,
    STUDY,
    Inventory,
    inventory,
)
from timonel.retention.plan import DeletionPlan, Key, expired, plan
from timonel.storage import Workspace, find_workspace, normalise
from timonel.storage.deletion import size_of
from timonel.tracking import read_run
from timonel.units import parse_seconds

NOUNS = (RUN, JOB, STUDY, DATASET, MODEL, ENDPOINT)


@dataclass(frozen=True)
class DeletionItem:
    """An item of a deletion.

    Args:
        noun: Its noun, such as ``run``.
        places: Folders, files and URIs that are removed.
        stays: Location of data of the user outside of the workspace, which is not removed.
    """

    noun: str
    name: str
    size_bytes: int
    places: tuple[str, ...]
    stays: str | None = None


@dataclass(frozen=True)
class Removed:
    """A deletion: what went, or would go, and what stays.

    Args:
        deleted: The items that went.
        kept: Why others stay, by noun and name.
        done: Whether they are deleted; false for a preview, and without consent.
    """

    deleted: tuple[DeletionItem, ...]
    kept: dict[Key, str]
    done: bool

    @property
    def size_bytes(self) -> int:
        """Size of all that is removed."""
        return sum(each.size_bytes for each in self.deleted)


Consent = Callable[[Removed], bool]
"""Asked with the plan before anything is deleted."""


def delete(
    noun: str,
    names: str | Sequence[str],
    *,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    consent: Consent = lambda _: True,
) -> Removed:
    """Delete items of a workspace, with their parts: a run's job, and the trials of a study.

    What has an alias, what an endpoint uses, and what remaining items were made from is kept. Data
    outside of the workspace is never deleted: such a dataset loses its entry.

    Args:
        noun: ``run``, ``job``, ``study``, ``dataset``, ``model`` or ``endpoint``.
        names: Names; of models, also versions such as ``cats/3``.
        workspace: The workspace, or its path.
        force: Delete also what would be kept, except what is running.
        dry_run: Only tell what would be deleted.
        consent: Asked with the plan before anything is deleted.

    Raises:
        NotFoundError: A name does not exist.
        SpecError: All of it is kept, or the noun is unknown.
        InputError: Something cannot be deleted.
    """
    if noun not in NOUNS:
        raise SpecError(f"unknown noun {noun!r}", hint=f"use one of {', '.join(NOUNS)}")
    place = find_workspace(workspace, create=False)
    given = [names] if isinstance(names, str) else list(names)
    if noun == ENDPOINT:
        return _delete_endpoints(place, given, consent, dry_run=dry_run)
    found = inventory(place)
    chosen = [key for name in given for key in _keys(found, noun, name)]
    planned = plan(found.items, chosen, force=force)
    if not planned.deleted and planned.kept:
        raise _refusal(planned)
    return _carry_out(found, planned, consent, force=force, dry_run=dry_run)


def prune(
    *,
    older_than: float | str,
    keep_last: int = 0,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    consent: Consent = lambda _: True,
) -> Removed:
    """Delete old runs with their jobs, studies, model versions, and datasets of the workspace.

    Args:
        older_than: Age, such as ``30d`` or seconds.
        keep_last: How many of each kind of run, of the studies and of each model's versions stay,
            whatever their age.
        workspace: The workspace, or its path.
        force: Delete also what has an alias, and what remaining items were made from.
        dry_run: Only tell what would be deleted.
        consent: Asked with the plan before anything is deleted.

    Raises:
        SpecError: An argument is invalid.
        InputError: Something cannot be deleted.
    """
    age_s = parse_seconds(older_than)
    if keep_last < 0:
        raise SpecError(f"the number to keep cannot be negative, got {keep_last}")
    found = inventory(find_workspace(workspace, create=False))
    chosen = expired(found.items, time.time(), older_than_s=age_s, keep_last=keep_last)
    planned = plan(found.items, chosen, force=force)
    return _carry_out(found, planned, consent, force=force, dry_run=dry_run)


def _keys(found: Inventory, noun: str, name: str) -> list[Key]:
    """Return the items that a name means."""
    if noun == RUN:
        return [(RUN, read_run(found.workspace, name).id)]
    if noun == MODEL:
        return _versions(found.workspace, name)
    known = [own for kind, own in found.items if kind == noun]
    if noun == DATASET:
        matches = [uri for uri in known if uri in {name, normalise(name)}]
        matches = matches or [uri for uri in known if uri.rpartition("/")[2] == name]
    elif noun == JOB:
        matches = [name] if name in known else [job for job in known if job.startswith(name)]
        matches = matches if name and len(matches) == 1 else []
    else:
        matches = [name] if name in known else []
    if not matches:
        some = ", ".join(sorted(known)[:5])
        raise NotFoundError(
            f"no {noun} {name!r} in this workspace", hint=f"there are: {some}" if known else None
        )
    return [(noun, each) for each in matches]


def _versions(workspace: Workspace, name: str) -> list[Key]:
    repository = workspace_models(workspace)
    model, slash, number = name.partition("/")
    if slash and not VERSION_NUMBER.fullmatch(number):
        raise SpecError(f"expected NAME or NAME/VERSION, got {name!r}")
    if slash:
        return [(MODEL, str(repository.get(model, int(number))))]
    if "@" in name:
        return [(MODEL, str(repository.resolve(name)))]
    repository.get(name)
    return [(MODEL, str(version)) for version in repository.versions(name)]


def _refusal(planned: DeletionPlan) -> SpecError:
    named = [f"{' '.join(key)}: {reason}" for key, reason in planned.kept.items()]
    told = [each.replace(": it has ", " has ") for each in named]
    more = f", and {len(told) - 3} more" if len(told) > 3 else ""
    return SpecError(
        f"nothing is deleted: {'; '.join(told[:3])}{more}",
        hint=f"--force deletes {'it' if len(told) == 1 else 'them'} anyway, but nothing that runs",
    )


def _carry_out(
    found: Inventory, planned: DeletionPlan, consent: Consent, *, force: bool, dry_run: bool
) -> Removed:
    entries = tuple(_entry(found, key) for key in planned.deleted)
    removed = Removed(entries, dict(planned.kept), done=False)
    if dry_run or not entries or not consent(removed):
        return removed
    places = [found.places[key] for key in planned.deleted]
    with contextlib.ExitStack() as stack:
        _retire(found, planned.deleted, stack, force=force)
        found.workspace.deletion.delete(
            [path for place in places for path in place.paths],
            [each for place in places for each in place.objects],
        )
    return Removed(entries, removed.kept, done=True)


def _retire(
    found: Inventory, deleted: Sequence[Key], stack: contextlib.ExitStack, *, force: bool
) -> None:
    """Lock the models of versions; with ``force``, take the versions' aliases away."""
    versions: dict[str, list[int]] = defaultdict(list)
    for noun, name in deleted:
        if noun == MODEL:
            model, _, number = name.rpartition("/")
            versions[model].append(int(number))
    repository = workspace_models(found.workspace)
    for model, numbers in versions.items():
        for alias, version in repository.aliases(model).read().items():
            if force and version in numbers:
                repository.alias(model, alias, None, reason=f"version {version} is deleted")
        stack.enter_context(repository.retiring(model, numbers))


def _entry(found: Inventory, key: Key) -> DeletionItem:
    place, copy = found.places[key], found.workspace.local_copy
    paths = [path for path in place.paths if os.path.lexists(path)]
    size, places = sum(map(size_of, paths)), list(map(str, paths))
    if copy is not None:
        blobs = [blob for each in place.objects for blob in copy.store.find(each.folder).values()]
        size, places = sum(blob.size for blob in blobs), [each.folder for each in place.objects]
    return DeletionItem(*key, size, tuple(places), place.uri)


def _delete_endpoints(
    workspace: Workspace, names: Sequence[str], consent: Consent, *, dry_run: bool
) -> Removed:
    """Delete endpoints: their control plane ends the replicas, then removes the documents."""
    endpoints = [open_endpoint(workspace, name) for name in dict.fromkeys(names)]
    entries = tuple(
        DeletionItem(ENDPOINT, each.name, 0, (each.folder.place,)) for each in endpoints
    )
    removed = Removed(entries, {}, done=False)
    if dry_run or not consent(removed):
        return removed
    for endpoint in endpoints:
        endpoint.delete(wait=False)
    for endpoint in endpoints:
        endpoint.delete()
    return Removed(entries, {}, done=True)
