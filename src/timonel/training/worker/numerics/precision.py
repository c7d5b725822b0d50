"""Precision, XLA and determinism of a job's scripts, for both Kerases."""

from __future__ import annotations

import logging
from typing import Any

from timonel.errors import TimonelError
from timonel.training.settings import Numerics, Settings
from timonel.training.train_options import Strategy

logger = logging.getLogger(__name__)

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def configure(keras: Any, settings: Numerics) -> None:
    """Apply settings, except for the seed, that must precede the script's first layer."""
    if settings.deterministic:
        import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

        tf.config.experimental.enable_op_determinism()
    if settings.precision != "float32":
        _set_policy(keras, _POLICIES[settings.precision])


def warn_of_own_policy(found: str, settings: Numerics) -> None:
    """Warn if the script has set another policy than the job's."""
    required = _POLICIES[settings.precision]
    if found != required and settings.precision != "float32":
        logger.warning(
            "the script sets the precision policy %s, which overrides %s of the job",
            found,
            required,
        )


def record(policy: str, name: Strategy, strategy: Any, settings: Settings) -> dict[str, Any]:
    """Return strategy and numerics of a job for the run's record."""
    distribution = settings.distribution
    known = {
        "strategy": name,
        "replicas": strategy.num_replicas_in_sync if strategy is not None else 1,
        "precision": policy,
        "xla": settings.numerics.xla or None,
        "deterministic": settings.numerics.deterministic or None,
        "collectives": distribution.cross_device_ops
        or (distribution.collectives if name == "multi-worker" else None),
        "compress_gradients": distribution.compress_gradients,
    }
    return {key: value for key, value in known.items() if value is not None}


def compile_with_xla(model: Any) -> None:
    """Compile a model with XLA, which Keras 3 leaves off without a GPU."""
    if model.jit_compile:
        return
    if model.run_eagerly:
        raise TimonelError(
            "--xla cannot compile a model that runs eagerly", hint="drop run_eagerly=True, or --xla"
        )
    model.jit_compile = True
    if not model.jit_compile:
        layers = model._flatten_layers()
        names = [layer.name for layer in layers if not getattr(layer, "supports_jit", True)]
        raise TimonelError(
            f"XLA cannot compile these layers: {', '.join(names) or model.name}",
            hint="drop --xla",
        )
    # An earlier fit of this model was compiled without XLA.
    model.train_function = model.test_function = model.predict_function = None


def _set_policy(keras: Any, name: str) -> None:
    if keras.__name__ == "keras":
        keras.config.set_dtype_policy(name)
    else:
        keras.mixed_precision.set_global_policy(name)
