"""Autoscaling of endpoints: pure decisions, with the time as an argument."""

from timonel.endpoints.autoscaling.autoscaler import (
    AutoscalerState,
    Replicas,
    decide,
    record,
)
from timonel.endpoints.autoscaling.decisions import Decision
from timonel.endpoints.autoscaling.hpa import ReplicaSample
from timonel.endpoints.autoscaling.policy import ScalingPolicy

__all__ = [
    "AutoscalerState",
    "Decision",
    "ReplicaSample",
    "Replicas",
    "ScalingPolicy",
    "decide",
    "record",
]
