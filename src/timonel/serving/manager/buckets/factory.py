"""Which source a base path has: a folder of this machine, or a bucket."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from timonel.serving.manager.buckets.cache import ModelCache
from timonel.serving.manager.buckets.source import BucketSource
from timonel.serving.manager.sources import FolderSource, Source
from timonel.serving.settings import LoadSettings
from timonel.storage.uris import is_local, local_path

MakeSource = Callable[[str], Source]


def cache_of(settings: LoadSettings) -> ModelCache:
    """Return the cache that a server keeps versions from buckets in."""
    folder = _default() if settings.model_cache is None else local_path(settings.model_cache)
    return ModelCache(folder, settings.model_cache_bytes)


@functools.lru_cache(maxsize=1024)
def folder_of(base_path: str) -> Path | None:
    """Return the folder of this machine that a base path means; none for one in a bucket."""
    if not is_local(base_path):
        return None
    return local_path(base_path) if "://" in base_path else Path(base_path)


def sources(settings: LoadSettings, wake: Callable[[], None]) -> MakeSource:
    """Return what makes the source of a base path.

    Args:
        settings: Times, and the cache.
        wake: Called, from any thread, when a bucket has told something new.
    """
    cache = cache_of(settings)

    def make(base_path: str) -> Source:
        folder = folder_of(base_path)
        if folder is not None:
            return FolderSource(folder, settings.settle_s)
        return BucketSource(base_path, cache, settings.poll_s, settings.settle_s, wake)

    return make


def _default() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        parent = Path(caches) if caches else Path.home() / ".cache"
    except RuntimeError:  # a user without a home, as containers have them
        parent = Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"
    return parent / "timonel" / "models"
