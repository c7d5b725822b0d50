"""Deletion and retention of runs, jobs, studies, datasets, model versions and endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timonel.lazy import lazy_names

if TYPE_CHECKING:
    from timonel.retention.deletion import Removed, delete, prune

__all__ = ["Removed", "delete", "prune"]

__getattr__, __dir__ = lazy_names(__name__, {"deletion": ("Removed", "delete", "prune")})
