"""Everything that was counted, at one moment: what the two pages are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from timonel.serving.monitoring.series import (
    Batches,
    BatchKey,
    PathKey,
    RequestKey,
    Requests,
    Times,
)


@dataclass(frozen=True)
class Snapshot:
    """Copies of all counts.

    Args:
        requests: Requests that were answered.
        batches: Batches that were computed.
        loads: Attempts to load a version.
        warmups: Attempts to warm one up.
        logged: Requests to be logged, by model and by what became of them: ``OK``,
            ``RESOURCE_EXHAUSTED`` (dropped, as the queue or the disk was full) or ``INTERNAL``.
        versions: Versions by model and state.
        memory: Bytes in memory by kind of process.
    """

    requests: Mapping[RequestKey, Requests] = field(default_factory=dict)
    batches: Mapping[BatchKey, Batches] = field(default_factory=dict)
    loads: Mapping[PathKey, Times] = field(default_factory=dict)
    warmups: Mapping[PathKey, Times] = field(default_factory=dict)
    logged: Mapping[tuple[str, str], int] = field(default_factory=dict)
    versions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
