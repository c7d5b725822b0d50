"""Result of one step of an autoscaler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """Number of replicas, and the way of requests to them.

    Args:
        replicas: Number of replicas to set.
        through_activator: Whether requests go through the activator.
        panicking: Whether sudden load has stopped any decrease.
        reason: The reason in one line, for a status page.
        excess_burst: Load that ready replicas could take beyond the burst to absorb; None for HPA.
    """

    replicas: int
    through_activator: bool = False
    panicking: bool = False
    reason: str = ""
    excess_burst: int | None = None
