"""Examples for calibration and comparison, as inputs of a device. TensorFlow processes only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from timonel.data import Dataset
from timonel.data.preprocess import image_batch
from timonel.data.preprocessing import (
    ImagePreprocessing,
    Normalise,
    TablePreprocessing,
    parse_preprocessing,
)
from timonel.data.schema import COLUMN_PREFIX, IMAGE_FEATURE, KEY_FEATURE, LABEL_FEATURE
from timonel.edge.device_model import IMAGE, ROW, DeviceModel
from timonel.edge.report import ConversionRequest
from timonel.errors import SpecError
from timonel.models.npz import read_npz, rows_of
from timonel.models.schema import Export

Inputs = Mapping[str, npt.NDArray[Any]]
"""Arrays with a batch of 1, by input name."""

_MAX_CALIBRATION = 200
_MAX_HELD_OUT = 1000
_RANDOM = 10


@dataclass(frozen=True)
class Example:
    """An example for a comparison.

    Attributes:
        key: Key of the record, or the number of the sample.
        inputs: The inputs.
        label: Index of the true label, or the true value; None if unknown.
    """

    key: str
    inputs: Inputs
    label: float | None = None


@dataclass(frozen=True)
class Samples:
    """Examples of a conversion.

    Attributes:
        calibration: Inputs from the training split.
        held_out: Examples that the model was not trained on.
        source: Where the held-out examples come from.
    """

    calibration: Sequence[Inputs]
    held_out: Sequence[Example]
    source: str


def read_samples(request: ConversionRequest, model: DeviceModel) -> Samples:
    """Read the examples of a request; random inputs if it names neither a dataset nor samples."""
    if request.samples is not None:
        return _from_arrays(request.samples, model)
    if request.dataset is None:
        return Samples((), _random(model), "random inputs")
    if request.export is None:
        raise SpecError(
            "how the model's inputs are made from the dataset is not recorded, as timonel did not "
            "export it",
            hint="give inputs as they enter the model with --samples FILE.npz",
        )
    if model.layout == "tensors":
        raise SpecError(
            "the model's input is made by code of its script, which a device does not run",
            hint="give inputs as they enter the model with --samples FILE.npz",
        )
    dataset = Dataset.open(request.dataset)
    numbers = _label_numbers(dataset, request.export)
    split = next((each for each in ("test", "validation", "train") if dataset.count(each)), "train")
    spec = parse_preprocessing(dict(request.export.preparation.transforms or {}))
    held_out = _examples(dataset, split, spec, numbers, _MAX_HELD_OUT)
    calibration = _examples(dataset, "train", spec, numbers, _MAX_CALIBRATION)
    return Samples([example.inputs for example in calibration], list(held_out), f"{split} split")


def _random(model: DeviceModel) -> list[Example]:
    """Return random inputs, which show whether a conversion computes the same at all."""
    generator = np.random.default_rng(0)
    highest = 255.0 if model.layout == "image" else 1.0

    def values(spec: tf.TensorSpec) -> npt.NDArray[Any]:
        shape = (1, *spec.shape[1:])
        if spec.dtype.is_floating:
            return generator.uniform(0, highest, shape).astype(spec.dtype.as_numpy_dtype)
        # An index must stay within its vocabulary, whose size is unknown here.
        return generator.integers(0, 2, shape).astype(spec.dtype.as_numpy_dtype)

    return [
        Example(str(number), {spec.name: values(spec) for spec in model.specs})
        for number in range(_RANDOM)
    ]


def _examples(
    dataset: Dataset, split: str, spec: Any, numbers: Mapping[int, int] | None, most: int
) -> Iterator[Example]:
    """Yield at most ``most`` examples of a split, evenly spaced."""
    step = max(1, math.ceil(dataset.count(split) / most))
    for features in itertools.islice(dataset.examples(split), 0, None, step):
        label = features[LABEL_FEATURE]
        number = float(label) if numbers is None else numbers.get(int(label), -1)
        yield Example(features[KEY_FEATURE], _inputs(spec, features), number)


def _inputs(spec: ImagePreprocessing | TablePreprocessing, features: Mapping[str, Any]) -> Inputs:
    if isinstance(spec, ImagePreprocessing):
        # Scaling is part of the device's model.
        pixels = spec.model_copy(update={"scale": 1.0, "offset": 0.0})
        return {IMAGE: image_batch(pixels, tf.constant([features[IMAGE_FEATURE]])).numpy()}
    row = [_cell(each, features.get(COLUMN_PREFIX + each.column)) for each in spec.columns]
    return {ROW: np.array([row], np.float32)}


def _cell(column: Any, value: Any) -> float:
    if isinstance(column, Normalise):
        return math.nan if value is None else float(value)
    word = value.decode() if isinstance(value, bytes) else str(value)
    return column.vocabulary.index(word) + 1.0 if word in column.vocabulary else 0.0


def _label_numbers(dataset: Dataset, export: Export) -> Mapping[int, int] | None:
    """Return the model's label numbers by the dataset's; None for a regression."""
    if export.labels is None:
        return None
    if set(dataset.labels) != set(export.labels):
        raise SpecError(
            f"the dataset has the labels {', '.join(dataset.labels) or 'none'}, the model "
            f"{', '.join(export.labels)}",
            hint="give the dataset of the training, or a newer one with the same labels",
        )
    return {number: export.labels.index(label) for number, label in enumerate(dataset.labels)}


def _from_arrays(file: Path, model: DeviceModel) -> Samples:
    arrays = read_npz(file)
    names = [spec.name for spec in model.specs]
    if arrays.keys() != set(names):
        raise SpecError(
            f"{file} holds {', '.join(arrays)}, the model takes {', '.join(names)}",
            hint="save one array for each input, with a row for each example",
        )
    typed = {spec.name: _typed(file, arrays[spec.name], spec) for spec in model.specs}
    rows = list(rows_of(typed, _MAX_HELD_OUT))
    held_out = [Example(str(number), row) for number, row in enumerate(rows)]
    return Samples(rows[:_MAX_CALIBRATION], held_out, file.name)


def _typed(file: Path, array: npt.NDArray[Any], spec: tf.TensorSpec) -> npt.NDArray[Any]:
    if not spec.shape[1:].is_compatible_with(array.shape[1:]):
        raise SpecError(
            f"{spec.name} in {file} has rows of shape {array.shape[1:]}, the model takes "
            f"{tuple(spec.shape[1:])}"
        )
    if array.dtype.kind in "biuf":
        typed = array.astype(spec.dtype.as_numpy_dtype)
        if spec.dtype.is_floating or np.array_equal(typed, array):
            return typed
    raise SpecError(f"{spec.name} in {file} holds {array.dtype}, the model takes {spec.dtype.name}")
