"""Base of models that declare how they may be called."""

from __future__ import annotations

from timonel.serving.runtimes.base import LoadedModel


class DeclaringModel(LoadedModel):
    """A version that declares how it may be batched and called concurrently.

    For other versions the server detects or assumes this.
    """

    batchable: bool
    """Whether rows of different requests may be computed in one batch."""
    slots: int
    """Number of concurrent calls of `run`; further calls wait."""
