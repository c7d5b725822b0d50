"""Program of a fine-tuning: fits an earlier run's model with simulated integers."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from timonel.data import Dataset, load, load_registry
from timonel.data.preprocessing import load_options, parse_preprocessing
from timonel.errors import ModelError
from timonel.models.architecture import Architecture, read_architecture
from timonel.models.exports import read_export, saved_model_of
from timonel.models.safety.check import check_saved_model
from timonel.models.schema import Export
from timonel.models.signatures import TENSOR
from timonel.tracking import Artifact
from timonel.training.quantize_aware.fake_quantization import calibrate, quantized
from timonel.training.quantize_aware.legacy_model import known_settings, rebuild
from timonel.training.worker.context import context

logger = logging.getLogger("timonel.training.quantize_aware")

_TOLERANCE = 1e-3
_TOLERANCES = {"mixed_bfloat16": 0.05, "mixed_float16": 0.005}
"""Tolerance by policy of layers: about ten times the rounding error of one operation."""
_BATCHES = 10
_HINT = "quantize after training: timonel models convert NAME --quantize int8"


def main() -> None:
    """Parse the arguments, and fine-tune the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--learning_rate", type=float, required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    try:
        fine_tune(parser.parse_args())
    except ModelError as error:
        error.hint = error.hint or _HINT
        raise


def fine_tune(args: argparse.Namespace) -> None:
    """Fine-tune a model with simulated integers."""
    export = read_export(args.model)
    architecture = read_architecture(args.model)
    task = context()
    if task.run is not None:
        task.run.input(Artifact("savedmodel", saved_model_of(args.model), export.digest, args.run))
    batches = _whole_batches(export, args.batch_size)
    check_saved_model(saved_model_of(args.model))
    # A thread is in no strategy's scope: signatures cannot run with distributed variables.
    with ThreadPoolExecutor(1) as thread:
        loaded = thread.submit(tf.saved_model.load, str(saved_model_of(args.model))).result()
    original = rebuild(architecture, loaded.variables_used)
    _check(original, loaded.signatures[TENSOR], batches[0], _tolerance(architecture))
    model, floats = quantized(original)
    calibrate(model, batches)
    if floats:
        logger.warning("these layers stay in float: %s", ", ".join(floats))
    model.compile(
        optimizer=tf_keras.optimizers.Adam(args.learning_rate),
        loss=_loss(architecture),
        metrics=[_metric(export)],
    )
    model.fit(
        _data(export, "train", args.batch_size),
        validation_data=_data(export, "validation", args.batch_size),
        epochs=args.epochs,
    )


def _whole_batches(export: Export, batch_size: int) -> list[Any]:
    """Return inputs that are the same on all workers, so that ranges are as well."""
    shard = load_registry.input_shard()
    load_registry.configure(load_registry.InputShard())
    try:
        data = _data(export, "train", batch_size, shuffle=False)
        return [inputs for inputs, _ in itertools.islice(data, _BATCHES)]
    finally:
        load_registry.configure(shard)


def _data(export: Export, split: str, batch_size: int, *, shuffle: bool | None = None) -> Any:
    dataset = Dataset.open(next(iter(context().data.values())))
    if not dataset.count(split):
        return None
    label_mode: Any = export.label_mode or "auto"
    preprocessing = parse_preprocessing(dict(export.preparation.transforms or {}))
    return load(
        split=split,
        batch_size=batch_size,
        label_mode=label_mode,
        shuffle=shuffle,
        **load_options(preprocessing),
    )


def _tolerance(architecture: Architecture) -> float:
    """Return the largest difference to the original, which can compute with fewer bits."""
    policies = json.dumps(architecture.config)
    return next((found for name, found in _TOLERANCES.items() if name in policies), _TOLERANCE)


def _check(rebuilt: Any, signature: Any, inputs: Any, tolerance: float) -> None:
    (name,) = signature.structured_input_signature[1]
    expected = next(iter(signature(**{name: inputs}).values())).numpy()
    found = np.asarray(rebuilt(inputs, training=False)).reshape(expected.shape)
    if not np.isfinite(expected).all():
        raise ModelError(
            "the model's outputs are no finite numbers", hint="train it again, until its loss falls"
        )
    difference = float(np.abs(found - expected).max())
    # Not a number is no match either.
    if not difference <= tolerance * max(1.0, float(np.abs(expected).max())):
        raise ModelError(
            f"the model computes something else in tf-keras: an output differs by {difference:.3g}"
        )


def _metric(export: Export) -> Any:
    if export.meaning.applied == "sigmoid":
        # "accuracy" compares logits with 0.5.
        return tf_keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)
    return "accuracy" if export.labels else "mae"


def _loss(architecture: Architecture) -> Any:
    """Return the loss that the model was compiled with."""
    compiled: Mapping[str, Any] = architecture.config.get("compile_config") or {}
    loss = compiled.get("loss")
    if isinstance(loss, str):
        return loss
    settings: Mapping[str, Any] = loss if isinstance(loss, Mapping) else {}
    kind = getattr(tf_keras.losses, settings.get("class_name", ""), None)
    # A class of the script can have the name of one of Keras.
    if kind is None or settings.get("module") != "keras.losses":
        raise ModelError(
            f"the model's loss cannot be used again: {loss}",
            hint="compile the model with one loss of Keras, and train again",
        )
    config = dict(settings["config"])
    if config.get("reduction", "").startswith("mean"):  # differs with weights of examples alone
        config["reduction"] = "sum_over_batch_size"
    return kind(**known_settings(config, kind))


main()
