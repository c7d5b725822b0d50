"""Settings of runtimes, which compute models."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pydantic import Field

from timonel.serving.settings.base import Settings
from timonel.serving.settings.batching import AdaptiveBatching, BatchingSettings, cores

AUTO = "auto"
"""The runtime that chooses another one for each version."""
EVERY_MODEL = "*"
"""Key for all models in per-model settings."""
_FEW_CORES = 2
_TENSORFLOWS_OWN = "TF_NUM_INTRAOP_THREADS"


def default_op_threads() -> int:
    """Return the default number of threads per operation; 0 lets TensorFlow choose.

    As many batches are computed at once as there are cores. With few cores, splitting operations as
    well only makes threads wait for each other. Not measured on more cores, where a single request
    should be able to use several of them.
    """
    return 1 if cores() <= _FEW_CORES and _TENSORFLOWS_OWN not in os.environ else 0


class RuntimeSettings(Settings):
    """Settings of runtimes, which compute models."""

    name: str = Field(
        default="tensorflow",
        description="The runtime's entry-point name; 'auto' follows the evidence in each version.",
    )
    by_model: Mapping[str, str] = Field(
        default_factory=dict, description="The runtime of models that have another one."
    )
    prefer_tflite: bool = Field(
        default=False,
        description="Compute versions that have a model.tflite with LiteRT, as TensorFlow Serving "
        "reads them, and others with TensorFlow.",
    )
    interpreters: int = Field(
        default=0, ge=0, description="LiteRT's interpreters of a version; 0 for one a core."
    )
    tags: tuple[str, ...] = Field(default=("serve",), description="Tags of the graph to load.")
    intra_op_threads: int = Field(
        default=0, ge=0, description="Threads within an operation; 0 lets TensorFlow choose."
    )
    inter_op_threads: int = Field(
        default=0, ge=0, description="Operations at the same time; 0 lets TensorFlow choose."
    )
    batching: BatchingSettings = Field(
        default_factory=AdaptiveBatching,
        description="Whether requests are put together, and by which rules.",
    )
    frozen_graphs: bool = Field(
        default=False,
        description="Let TensorFlow compute the graph with constants for variables, where a "
        "version's evidence has found that faster.",
    )
    safe_loading: bool = Field(
        default=False,
        description="Refuse SavedModels with operations that could do more than compute.",
    )
    allow_ops: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Operations that are trusted all the same, by model; under '*' for all.",
    )
    hooks: str | None = Field(
        default=None, description="A file of Python that prepares requests and finishes answers."
    )

    def of(self, model: str) -> RuntimeSettings:
        """Return the settings for the versions of one model."""
        every, own = (self.allow_ops.get(name, ()) for name in (EVERY_MODEL, model))
        return self.model_copy(
            update={
                "name": self.by_model.get(model, self.name),
                "by_model": {},
                "frozen_graphs": self.by_model.get(model, self.name) == AUTO,
                "allow_ops": {EVERY_MODEL: (*every, *own)},
            }
        )

    @property
    def runtimes(self) -> frozenset[str]:
        """Names of all configured runtimes."""
        return frozenset((self.name, *self.by_model.values()))
