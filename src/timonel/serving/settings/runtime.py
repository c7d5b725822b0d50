"""Settings for computing models: runtimes and Python code."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from timonel.errors import SpecError
from timonel.serving.settings.base import EVERY_MODEL, SettingsModel
from timonel.serving.settings.batching import AdaptiveBatching, BatchingSettings, cores
from timonel.units import Seconds

AUTO = "auto"
"""The runtime that chooses another one for each version."""
LITERT = "litert"
"""LiteRT's model beside, or instead of, a SavedModel."""
_FEW_CORES = 2
_TENSORFLOWS_OWN = "TF_NUM_INTRAOP_THREADS"


def default_op_threads() -> int:
    """Return the default number of threads per operation; 0 lets TensorFlow choose.

    As many batches are computed at once as there are cores. With few cores, splitting operations as
    well only makes threads wait for each other. Not measured on more cores, where a single request
    should be able to use several of them.
    """
    return 1 if cores() <= _FEW_CORES and _TENSORFLOWS_OWN not in os.environ else 0


class RuntimeSettings(SettingsModel):
    """Settings of runtimes, which compute models."""

    model: str = Field(default="", description="The model that these settings are for, see `of`.")
    name: str = Field(
        default="tensorflow",
        description="Entry-point name of the runtime; 'auto' follows the evidence in each version.",
    )
    by_model: Mapping[str, str] = Field(
        default_factory=dict, description="Runtimes of single models."
    )
    prefer_tflite: bool = Field(
        default=False,
        description="Compute versions that have a model.tflite with LiteRT, as TensorFlow "
        "Serving does, and others with TensorFlow.",
    )
    interpreters: int = Field(
        default=0, ge=0, description="LiteRT interpreters per version; 0 for one per core."
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
        description="Whether and how requests are batched.",
    )
    frozen_graphs: bool = Field(
        default=False,
        description="Let TensorFlow compute the graph with constants instead of variables, if a"
        " version's evidence says that this is faster.",
    )
    safe_loading: bool = Field(
        default=True,
        description="Refuse models that can access files or run Python. Also refuses operations "
        "that use the network.",
    )
    allow_ops: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Allowed operations by model; '*' for all models.",
    )
    op_libraries: tuple[str, ...] = Field(
        default=(),
        description="Load this op library, and allow its operations: a package such as "
        "tensorflow_text, or the path of a .so file.",
    )

    def of(self, model: str) -> RuntimeSettings:
        """Return the settings for the versions of one model."""
        every, own = (self.allow_ops.get(name, ()) for name in (EVERY_MODEL, model))
        batching = self.batching
        return self.model_copy(
            update={
                "model": model,
                "name": self.by_model.get(model, self.name),
                "by_model": {},
                "frozen_graphs": self.by_model.get(model, self.name) == AUTO,
                "allow_ops": {EVERY_MODEL: (*every, *own)},
                "batching": batching.of(model)
                if isinstance(batching, AdaptiveBatching)
                else batching,
            }
        )

    @property
    def runtimes(self) -> frozenset[str]:
        """Names of all configured runtimes."""
        return frozenset((self.name, *self.by_model.values()))


class PythonSettings(SettingsModel):
    """Python code of models. It has all permissions of the server's user."""

    allow: tuple[str, ...] = Field(
        default=(),
        description="Allow this model's versions to be Python code, run as your user; * for all.",
    )
    timeout_s: Seconds | None = Field(
        default=60.0,
        gt=0,
        description="Seconds for a request to a Python model; then its process is restarted.",
    )

    def allows(self, name: str) -> bool:
        """Return whether a model's versions may contain Python."""
        return name in self.allow or EVERY_MODEL in self.allow


def by_model(values: Iterable[str], what: str) -> dict[str, tuple[str, ...]]:
    """Group values (``VALUE`` or ``MODEL=VALUE``) by model; `EVERY_MODEL` has those for all."""
    found: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for text in values:
        left, equals, right = text.rpartition("=")
        model, value = left if equals else EVERY_MODEL, right
        if not model or not value:
            raise SpecError(f"expected {what}, or MODEL={what}, got {text!r}")
        found[model] += (value,)
    return dict(found)


def runtime_choice(values: Iterable[str], default: str = AUTO) -> dict[str, Any]:
    """Return the settings ``name`` and ``by_model`` of `RuntimeSettings`.

    Args:
        values: Items of the form ``RUNTIME`` or ``MODEL=RUNTIME``.
    """
    found = by_model(values, "a runtime")
    for model, names in found.items():
        if len(names) > 1:
            whose = "all models" if model == EVERY_MODEL else model
            raise SpecError(f"{whose} can have only one runtime, got {', '.join(names)}")
    (name,) = found.pop(EVERY_MODEL, (default,))
    return {"name": name, "by_model": {model: names[0] for model, names in found.items()}}
