"""Batching settings: none, adaptive, or TensorFlow Serving's parameters."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from timonel.serving.settings.base import EVERY_MODEL, SettingsModel


def cores() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class NoBatching(SettingsModel):
    """No batching: each request is computed alone."""

    kind: Literal["none"] = "none"


class AdaptiveBatching(SettingsModel):
    """Batch the requests that arrive while the model computes, without added delay.

    Only signatures whose rows are independent: by the evidence in the version, or as assumed here.
    """

    kind: Literal["adaptive"] = "adaptive"
    assumed: tuple[str, ...] = Field(
        default=(),
        description="Models to batch without evidence that rows are independent; '*' for all.",
    )
    max_rows: int = Field(default=1024, ge=1, description="Maximum rows of a batch.")
    max_queued: int = Field(
        default=1000,
        ge=1,
        description="Maximum queued requests of one version; others are refused.",
    )
    slots: int = Field(
        default=0, ge=0, description="Batches of a version at the same time; 0 for one per core."
    )

    def of(self, model: str) -> AdaptiveBatching:
        """Return the settings for the versions of one model."""
        is_assumed = {EVERY_MODEL, model} & set(self.assumed)
        return self.model_copy(update={"assumed": (EVERY_MODEL,) if is_assumed else ()})


class BatchingParameters(SettingsModel):
    """TensorFlow Serving's BatchingParameters, with its names and defaults.

    TensorFlow Serving rejects some values only when it starts threads or loads a model. These are
    accepted here, so that the error comes at the same time with the same text; see
    `timonel.serving.batching.tfserving_parameters`.
    """

    kind: Literal["parameters"] = "parameters"
    max_batch_size: int = Field(
        default=1000, description="Maximum rows of a batch and of a request."
    )
    batch_timeout_micros: int = Field(
        default=0,
        description="Time in microseconds that an incomplete batch waits for more requests.",
    )
    max_enqueued_batches: int = Field(
        default=10, description="Maximum batches in a queue; further requests are refused."
    )
    num_batch_threads: int = Field(
        default_factory=cores, description="Batches of a version at the same time."
    )
    thread_pool_name: str = Field(default="batch_threads", description="Name of the threads.")
    allowed_batch_sizes: tuple[int, ...] = Field(
        default=(), description="Sizes that batches are padded to; any size if empty."
    )
    pad_variable_length_inputs: bool = Field(
        default=False, description="Pad tensors of different shapes to the largest of the batch."
    )
    enable_large_batch_splitting: bool = Field(
        default=False, description="Split a large request over several batches."
    )
    max_execution_batch_size: int | None = Field(
        default=None,
        description="Maximum rows of a batch if requests are split; otherwise ignored.",
    )
    per_model: bool = Field(
        default=False,
        description="Read sizes and times from each version's batching_params.pbtxt; a version "
        "without one is not batched. The number of threads is still that of these parameters.",
    )


BatchingSettings = Annotated[
    NoBatching | AdaptiveBatching | BatchingParameters, Field(discriminator="kind")
]
