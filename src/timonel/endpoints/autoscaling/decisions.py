"""Result of one step of an autoscaler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """Number of replicas, and whether requests go through the activator.

    Args:
        replicas: Number of replicas to set.
        through_activator: Whether requests go through the activator.
        panicking: Whether sudden load prevents any decrease.
        reason: Reason in one line, for a status page.
        excess_burst: Spare capacity of ready replicas beyond the target burst capacity; None for
            HPA.
    """

    replicas: int
    through_activator: bool = False
    panicking: bool = False
    reason: str = ""
    excess_burst: int | None = None
