"""The settings of batching; they live beside `config`, which batching itself depends on."""

from timonel.serving.batching_settings import (
    AdaptiveBatching,
    BatchingParameters,
    BatchingSettings,
    NoBatching,
    cores,
)

__all__ = [
    "AdaptiveBatching",
    "BatchingParameters",
    "BatchingSettings",
    "NoBatching",
    "cores",
]
