"""Models that say themselves how they may be called, where others are tried."""

from __future__ import annotations

from timonel.serving.runtimes.base import LoadedModel


class DeclaringModel(LoadedModel):
    """A version that declares what batching would find out or assume of it."""

    batchable: bool
    """Whether rows of different requests may be computed together."""
    slots: int
    """How many calls of `run` are computed at once; more wait for their turn."""
