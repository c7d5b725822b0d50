"""Resolve references such as ``digits``, ``digits/3`` or a folder to model settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from timonel.errors import NotFoundError, SpecError
from timonel.models.inspection import is_python_model
from timonel.models.versions import NO_VERSION, holds_models, publish_hint, unknown_model
from timonel.serving.manager.sources import version_folders
from timonel.serving.settings.models import (
    Aliased,
    Latest,
    ModelSettings,
    Specific,
    VersionPolicy,
)
from timonel.storage import Workspace, find_workspace, is_local, join, local_path, normalise
from timonel.storage.aliases import LATEST, Aliases, split_alias, version_named
from timonel.storage.object_store import ObjectStore

SAVED_MODEL = "saved_model.pb"


def split_reference(reference: str) -> tuple[str, int | None]:
    """Split ``name`` or ``name/version`` into name and version."""
    name, slash, version = reference.rpartition("/")
    if slash and version.isascii() and version.isdigit() and "/" not in name and name:
        return name, int(version)
    return reference, None


def version_of(model: ModelSettings) -> int | None:
    """Return the version that settings name, by its number or an alias; None for the newest."""
    if isinstance(model.policy, Aliased):
        aliases = Aliases(model.base_path).read()
        return version_named(model.policy.alias, aliases, model.name)
    return model.policy.versions[0] if isinstance(model.policy, Specific) else None


def versions_at(place: str) -> list[int]:
    """Return the numbers of a model's versions in a folder or a bucket, ascending."""
    if is_local(place):
        return sorted(version_folders(local_path(place)))
    names = ObjectStore(place).folders("")
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def workspace_for(
    workspace: Workspace | str | os.PathLike[str] | None,
    references: Sequence[str | os.PathLike[str]],
) -> Workspace:
    """Return the workspace to use.

    It is created only when serving from a folder or URI.
    """
    for each in references:
        _refuse_assignment(os.fspath(each))
    if isinstance(workspace, Workspace):
        return workspace
    places = [split_alias(os.fspath(each))[0] for each in references]
    elsewhere = (not is_local(place) or _is_folder(place) for place in places)
    return find_workspace(workspace, create=any(elsewhere))


def resolve(
    reference: str | os.PathLike[str], workspace: Workspace, version: int | None = None
) -> ModelSettings:
    """Resolve a reference to model settings.

    Args:
        reference: A model of the workspace (``digits``, ``digits/3``), a folder of numbered
            versions, one of those versions' folders, or the URI of such a folder in a bucket. With
            an alias (``digits@champion``), its version is served, and another one when it moves.
        version: The only version to serve; None serves the latest and follows new ones.
    """
    text, alias = split_alias(os.fspath(reference))
    which = alias if version is None else version
    if not is_local(text):
        return _from_bucket(normalise(text), which)
    name, named_version = split_reference(text)
    if workspace.local_copy is not None and _is_plain(name):
        known = workspace.local_copy.store.folders("models")
        if name in known:
            place = join(workspace.uri, "models", name)
            return _from_bucket(place, named_version if which is None else which)
    base = workspace.models / name
    if _is_plain(name) and base.is_dir():
        return _settings(name, base, named_version if which is None else which)
    if _is_folder(text) or not _is_plain(name) or text.startswith("~"):
        return _from_folder(local_path(text), which)
    if workspace.local_copy is None:
        known = sorted(path.name for path in _folders(workspace.models))
    raise unknown_model(name, known, Path(text))


def _is_folder(text: str) -> bool:
    """Return whether a reference is a folder; a plain name or version must hold a model."""
    folder = local_path(text)
    return folder.is_dir() and (not _is_plain(split_reference(text)[0]) or holds_models(folder))


def _refuse_assignment(text: str) -> None:
    """Reject ``NAME=PATH``, a form that options such as ``--runtime`` accept."""
    name, equals, place = text.partition("=")
    if equals and _is_plain(name) and not Path(text).is_dir():
        raise SpecError(
            f"{text} is neither a model nor a folder of versions nor its URI",
            hint=f"a folder is served under its own name: use {place or 'it'} without {name}=, "
            f"or a link named {name}",
        )


def _from_folder(folder: Path, version: int | str | None) -> ModelSettings:
    if not folder.is_dir():
        raise NotFoundError(
            f"no folder at {folder}",
            hint="use a model's name, or a folder of versions such as 1/saved_model.pb",
        )
    if (folder / SAVED_MODEL).is_file() or is_python_model(folder):
        if not folder.name.isdigit():
            raise NotFoundError(
                f"the folder of the SavedModel {folder} is not a version number",
                hint=f"move it to {folder / '1'}, and serve {folder}",
            )
        return _settings(folder.parent.name, folder.parent, int(folder.name))
    return _settings(folder.name, folder, version)


def _from_bucket(uri: str, version: int | str | None) -> ModelSettings:
    parent, _, last = uri.rpartition("/")
    if last.isascii() and last.isdigit() and not parent.endswith("/"):
        uri, version = parent, int(last) if version is None else version
    return _serving(uri.rpartition("/")[2], uri, version)


def _settings(name: str, base: Path, version: int | str | None) -> ModelSettings:
    versions = version_folders(base)
    if not versions:
        raise NotFoundError(f"the folder {base} {NO_VERSION}", hint=publish_hint(name))
    if isinstance(version, str) and version != LATEST:
        version_named(version, Aliases(base).read(), name)
    if isinstance(version, int) and version not in versions:
        raise NotFoundError(
            f"{name} has no version {version} in {base}",
            hint=f"it has {', '.join(map(str, sorted(versions)))}",
        )
    return _serving(name, str(base), version)


def _serving(name: str, base_path: str, version: int | str | None) -> ModelSettings:
    policy: VersionPolicy
    if version is None or version == LATEST:
        policy = Latest()
    elif isinstance(version, str):
        policy = Aliased(alias=version)
    else:
        policy = Specific(versions=(version,))
    return ModelSettings(name=name, base_path=base_path, policy=policy)


def _is_plain(name: str) -> bool:
    return bool(name) and os.sep not in name and not name.startswith(".")


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
