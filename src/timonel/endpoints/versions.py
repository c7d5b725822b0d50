"""Versions of a model, where an endpoint serves it from."""

from __future__ import annotations

from timonel.serving.manager.sources import version_folders
from timonel.storage import is_local, local_path
from timonel.storage.object_store import ObjectStore


def versions_at(place: str) -> list[int]:
    """Return the numbers of a model's versions in a folder or a bucket, ascending."""
    if is_local(place):
        return sorted(version_folders(local_path(place)))
    names = ObjectStore(place).folders("")
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())
