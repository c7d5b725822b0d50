"""Plan the fine-tuning of a run. Imports no TensorFlow."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, NamedTuple

from timonel.data import Dataset
from timonel.data.schema import TableSchema
from timonel.errors import MissingExtraError, SpecError
from timonel.models.architecture import read_architecture
from timonel.models.exports import saved_model_of, simulates_integers, verify_export
from timonel.models.publish import find_model, open_export
from timonel.models.schema import Export
from timonel.storage import Workspace

PROGRAM = "timonel.training.quantize_aware"
DEFAULTS: Mapping[str, Any] = {"epochs": 3, "learning_rate": 1e-4, "batch_size": 32}
"""Parameters of the fine-tuning, which ``--set`` changes."""


class FineTuning(NamedTuple):
    """Program and arguments of a job that fine-tunes a model."""

    entry: str
    data: str
    params: Mapping[str, Any]


def plan_fine_tuning(
    workspace: Workspace, run: str, params: Mapping[str, Any], data: str | None
) -> FineTuning:
    """Plan the fine-tuning of a run's model, by default on its dataset."""
    if importlib.util.find_spec("tensorflow_model_optimization") is None:
        raise MissingExtraError("--quantize-aware", "quantization")
    unknown = params.keys() - DEFAULTS.keys()
    if unknown:
        raise SpecError(
            f"--quantize-aware has no parameter {min(unknown)!r}",
            hint=f"it has {', '.join(DEFAULTS)}",
        )
    record, artifact = find_model(workspace, run, "timonel train --quantize-aware {}")
    folder = open_export(workspace, record, artifact)
    export = verify_export(folder)
    if simulates_integers(saved_model_of(folder)):
        raise SpecError(
            f"run {record.id} trained with simulated integers already",
            hint="fine-tune the run before it, with --set epochs=N for more epochs",
        )
    read_architecture(folder)
    datasets = {each.uri: each.digest for each in record.inputs if each.type == "dataset"}
    if export.preparation.source != "data.load" or not (data or datasets):
        raise SpecError(
            f"run {record.id} did not train on data as timonel.data.load returns it",
            hint="load the data with timonel.data.load, prepare them in layers, and train again",
        )
    if export.preparation.input_kind != "image":
        raise SpecError(
            "--quantize-aware is for models of images: rows of tables are encoded in floats",
            hint="quantize after training: timonel models convert NAME --quantize int8",
        )
    if len(datasets) > 1 and data is None:
        raise SpecError(
            f"run {record.id} trained on several datasets: {', '.join(datasets)}",
            hint="give one with --data FOLDER",
        )
    place = data or next(iter(datasets))
    dataset = Dataset.open(place)
    if dataset.digest not in datasets.values():
        _check_dataset(dataset, export)
    chosen = {**DEFAULTS, **params}
    return FineTuning(PROGRAM, place, {"model": str(folder), "run": record.id, **chosen})


def _check_dataset(dataset: Dataset, export: Export) -> None:
    """Raise if another dataset than that of the training gives other labels or kinds of inputs."""
    hint = "give the dataset of the training, or train again on this one"
    if dataset.labels != (export.labels or ()):
        raise SpecError(
            f"{dataset.uri} has the labels {', '.join(dataset.labels) or 'none'}, the model "
            f"{', '.join(export.labels or ()) or 'none'}",
            hint=hint,
        )
    if isinstance(dataset.manifest.record_schema, TableSchema):
        raise SpecError(f"{dataset.uri} is a table, the model takes images", hint=hint)
