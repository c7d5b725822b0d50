"""Mirrors: copies of run records in other trackers."""

from timonel.tracking.mirrors.base import Mirror
from timonel.tracking.mirrors.feed import Fed, rebuild, sync_pending, sync_run
from timonel.tracking.mirrors.registry import installed_mirrors, known_mirrors, mirror_class

__all__ = [
    "Fed",
    "Mirror",
    "installed_mirrors",
    "known_mirrors",
    "mirror_class",
    "rebuild",
    "sync_pending",
    "sync_run",
]
