"""Mirrors: copies of run records in other trackers."""

from timonel.tracking.mirrors.base import Mirror, installed_mirrors, known_mirrors, mirror_class
from timonel.tracking.mirrors.feed import SyncResult, rebuild, sync_pending, sync_run

__all__ = [
    "Mirror",
    "SyncResult",
    "installed_mirrors",
    "known_mirrors",
    "mirror_class",
    "rebuild",
    "sync_pending",
    "sync_run",
]
