"""Export a model in its training process, where custom layers exist.

All tasks export, since reading a distributed variable may need all of them. Only the chief's files
are kept.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from timonel.data import Dataset, ImagePreprocessing, TablePreprocessing, load, load_registry
from timonel.data.preprocess import image_batch, parse_dates, table_batch
from timonel.data.preprocessing import ColumnTransform, DateParts, Decode, load_options
from timonel.data.schema import (
    COLUMN_PREFIX,
    IMAGE_FEATURE,
    KEY_FEATURE,
    DateColumn,
    DateType,
    TextColumn,
)
from timonel.data.sources.kinds.dates import date_text
from timonel.errors import InputError, ModelError, SpecError, TimonelError
from timonel.models.exports import MAX_EXAMPLES
from timonel.models.keras_model import call_in_inference, is_without_call, name_outputs
from timonel.models.savedmodel import export_live
from timonel.storage import digest_bytes
from timonel.training.worker import redirected_saves
from timonel.training.worker.fit.managed_fit import Fitted
from timonel.training.worker.fit.model_fit import replace_method
from timonel.training.worker.inputs import fit_data
from timonel.training.worker.inputs.replay import NotReplayableError, Replay, replay_of
from timonel.training.worker.private import tf_data

logger = logging.getLogger(__name__)

_exported_by_script: list[Any] = []

_saved: list[Any] = []
"""The model that the script saved last, which a loop of its own may have trained."""

surrounding: Callable[[Any], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
"""Context manager around a model's export; may copy remote variables into this process."""


def export_own(
    folder: Path,
    model: Any,
    labels: Sequence[str] | None,
    *,
    preprocess: Callable[[Any], Any] | None = None,
    input_kind: Literal["image", "table"] = "image",
    columns: Mapping[str, str] | None = None,
) -> None:
    """Export a model chosen by the script; the last one is kept."""
    record = load_registry.loads[-1] if load_registry.loads else None
    with surrounding(model), redirected_saves.suspended():
        if preprocess is None:
            _export(folder, model, _Source(record), labels)
        else:
            export_live(
                model,
                folder,
                preprocessing=None,
                labels=labels or (record.labels if record else None),
                input_kind=input_kind,
                label_mode=record.label_mode if record else None,
                columns=columns or (_columns(record.preprocessing) if record else None),
                preprocess=preprocess,
            )
    _exported_by_script.append(model)  # if it fails, the fitted model is exported


def export_fitted(
    folder: Path, fitted: Fitted | None, warn: Callable[[str], object] = logger.warning
) -> str | None:
    """Export the model fitted, else saved, last, unless the script did; return why it could not."""
    if _exported_by_script:
        return None
    if fitted is None:
        if not _saved:
            return "the script called no fit and saved no model: there is none to export"
        fitted = Fitted(_saved[0], None)
    try:
        with surrounding(fitted.model):
            _export(folder, fitted.model, _source_of(fitted), None, warn)
    except (ModelError, SpecError) as error:
        return f"the fitted model cannot be exported: {error}"
    return None


def watch_saves(keras: Any) -> None:
    """Note the model that the script or a callback saves."""

    def note(original: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
        _saved[:] = [model]
        return original(**arguments)

    for name in ("save", "export"):
        replace_method(keras.Model, name, note)


@dataclass(frozen=True)
class _Source:
    """Origin of a model's input."""

    record: load_registry.LoadRecord | None  # the load, if any
    replay: Replay | None = None  # functions that the script mapped over the load
    spec: Any = None  # the structure of the model's input, if known
    unknown: str | None = None  # why the transforms of raw input are unknown


def _source_of(fitted: Fitted) -> _Source:
    # Validation data are prepared as those to predict; training data may be augmented.
    for data in (fitted.validation, fitted.data):
        chain = tf_data.maps_of(data) if fit_data.is_dataset(data) else None
        if chain is None:
            continue
        stream, functions = chain
        found = load_registry.stream_of(stream)
        assert found is not None
        record = found.record
        if not functions:
            return _Source(record, spec=fitted.spec)
        try:
            replay = replay_of(stream, functions)
        except Exception as error:  # noqa: BLE001 - the functions are the user's
            return _Source(record, None, fitted.spec, _reason(error))
        if replay is not None:
            return _Source(record, replay, fitted.spec)
    loaded = fit_data.find_loaded(fitted.data)
    if loaded is None:
        return _Source(None, spec=fitted.spec)
    if loaded.is_changed:
        logger.warning(
            "the script transforms the data of timonel.data.load, which the served model will not: "
            "if it needs to, call context().export(model, preprocess=...)"
        )
    return _Source(loaded.record, spec=fitted.spec)


def _export(
    folder: Path,
    model: Any,
    source: _Source,
    labels: Sequence[str] | None,
    warn: Callable[[str], object] = logger.warning,
) -> None:
    record = source.record
    reason = source.unknown or "the model was not fitted on data of timonel.data.load"
    known = {
        "labels": labels or (record.labels if record else None) or None,
        "label_mode": record.label_mode if record else None,
        "input_spec": source.spec,
    }
    if is_without_call(model):
        reason = "it has no call()"
    elif record is not None and source.unknown is None:
        try:
            _export_raw(folder, model, record, source, known)
        except Exception as error:  # the model and the functions are the user's
            if isinstance(error, InputError) and not isinstance(error, SpecError):
                raise  # a full disk
            reason = _reason(error)
        else:
            return
    export_live(model, folder, preprocessing=None, input_kind="tensor", note=reason, **known)
    if is_without_call(model):
        warn("the model has no call(): the export has a signature for each of its built models")
    else:
        warn(
            f"the exported model takes tensors, not raw files or rows: {reason}. To serve raw "
            "input, call timonel.training.context().export(model, preprocess=...) in the script."
        )


def _reason(error: Exception) -> str:
    if isinstance(error, TimonelError):
        return error.message
    if isinstance(error, NotReplayableError):
        return str(error)
    first = next(iter(str(error).strip().splitlines()), "")
    return f"preparing raw input fails with {type(error).__name__}: {first[:200]}"


def _export_raw(
    folder: Path,
    model: Any,
    record: load_registry.LoadRecord,
    source: _Source,
    known: Mapping[str, Any],
) -> None:
    preprocessing, replay = record.preprocessing, source.replay
    if isinstance(preprocessing, TablePreprocessing) and replay is not None and replay.used:
        # Clients send the columns that the model uses.
        used = [each for each in preprocessing.columns if _is_used(each.column, replay.used)]
        preprocessing = preprocessing.model_copy(update={"columns": tuple(used)})
    prepare = replay.inputs if replay is not None else lambda x: _as_input(x, source.spec)
    transform, columns = _transform(preprocessing), _columns(preprocessing)
    reference = _reference(model, record, source)
    if isinstance(reference, str):
        logger.warning("no reference predictions in the export: %s", reference)
    export_live(
        model,
        folder,
        preprocessing=preprocessing.model_dump(mode="json"),
        input_kind=preprocessing.kind,
        transform=lambda raw: prepare(transform(raw)),
        columns=columns,
        reference=reference,
        replays=replay is not None,
        **known,
    )


def _is_used(column: str, names: Collection[str]) -> bool:
    return any(name == column or name.startswith(f"{column}/") for name in names)


def _transform(preprocessing: ImagePreprocessing | TablePreprocessing) -> Callable[[Any], Any]:
    if isinstance(preprocessing, ImagePreprocessing):
        return lambda contents: image_batch(preprocessing, contents)
    dates = _dates(preprocessing.columns)

    def rows(columns: Mapping[str, Any]) -> Any:
        # Clients send dates as texts, as they are in a table.
        values = {k: parse_dates(v, dates[k]) if k in dates else v for k, v in columns.items()}
        return table_batch(preprocessing, values)

    return rows


def _columns(preprocessing: ImagePreprocessing | TablePreprocessing) -> dict[str, str] | None:
    if isinstance(preprocessing, ImagePreprocessing):
        return None
    columns = {}
    for column in preprocessing.columns:
        if isinstance(column, Decode) and not isinstance(column.stored, TextColumn | DateColumn):
            raise SpecError(
                "a served model takes numbers, categories, texts and dates, but column "
                f"{column.column!r} is {column.stored.type}",
                hint="call context().export(model, preprocess=..., columns=...) in the script",
            )
        columns[column.column] = "float32" if column.kind == "normalise" else "string"
    return columns


def _dates(columns: Iterable[ColumnTransform]) -> dict[str, DateType]:
    """Return the columns of dates, with the order of day and month in their texts."""
    found: dict[str, DateType] = {}
    for column in columns:
        stored = column.stored if isinstance(column, Decode) else column
        if isinstance(stored, DateColumn | DateParts):
            found[column.column] = stored.order
    return found


def _as_input(features: Any, spec: Any) -> Any:
    """Return features as the model's input: the only column alone, where `fit` got it so."""
    if isinstance(features, Mapping) and len(features) == 1 and isinstance(spec, tf.TensorSpec):
        return next(iter(features.values()))
    return features


def _reference(
    model: Any, record: load_registry.LoadRecord, source: _Source
) -> dict[str, Any] | str:
    """Return the training pipeline's predictions for held-out records, or why there are none."""
    try:
        dataset = Dataset.open(record.uri)
        split = next((name for name in ("test", "validation") if dataset.count(name)), None)
        if split is None:
            return "the dataset has no held-out records"
        examples = list(itertools.islice(dataset.examples(split), MAX_EXAMPLES))
        predicted = _predict(model, record, split, len(examples), source)
    except TimonelError as error:  # damaged, or deleted since
        return f"the held-out records cannot be read: {error}"
    if isinstance(predicted, str):
        return predicted
    outputs, labels = predicted
    keys = [example[KEY_FEATURE] for example in examples]
    found = {"keys": keys, "outputs": outputs, "labels": labels, "digests": None}
    if isinstance(record.preprocessing, ImagePreprocessing):
        root = Path(dataset.manifest.source.uri)
        digests = [digest_bytes(example[IMAGE_FEATURE]) for example in examples]
        return {**found, "sources": [str(root / key) for key in keys], "digests": digests}
    dates = _dates(record.preprocessing.columns).keys()
    return {**found, "sources": [_row(example, dates) for example in examples]}


def _predict(
    model: Any, record: load_registry.LoadRecord, split: str, count: int, source: _Source
) -> tuple[dict[str, Any], Any] | str:
    found: dict[str, list[Any]] = {}
    labels: list[Any] = []
    seen = 0
    for x, y in _load_again(record, split):
        rows = len(tf.nest.flatten(x)[0])
        if source.replay is None:
            prepared, truth = _as_input(x, source.spec), y
        else:
            prepared, *rest = source.replay.mapped(x, y)
            truth = rest[0] if rest else None
        outputs = name_outputs(model, call_in_inference(model, prepared))
        if not all(_is_rows(each, rows) for each in outputs.values()):
            return "an output of the model is not numbers with a row for each input"
        if not seen and _differ(outputs, name_outputs(model, call_in_inference(model, prepared))):
            return "the model's outputs are random"
        for name, output in outputs.items():
            found.setdefault(name, []).append(np.asarray(output, np.float32))
        labels.append(truth)
        seen += rows
        if seen >= count:
            break
    is_array = all(hasattr(each, "shape") for each in labels)
    joined = {name: np.concatenate(each)[:count] for name, each in found.items()}
    return joined, np.concatenate([np.asarray(y) for y in labels])[:count] if is_array else None


def _is_rows(output: Any, rows: int) -> bool:
    dtype = getattr(output, "dtype", tf.string)
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    return is_number and bool(output.shape.rank) and output.shape[0] == rows


def _differ(outputs: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    return not all(
        np.allclose(
            np.asarray(output, np.float32), np.asarray(again[name], np.float32), equal_nan=True
        )
        for name, output in outputs.items()
    )


def _load_again(record: load_registry.LoadRecord, split: str) -> Any:
    """Load a whole split with the script's own `load` options."""
    shard = load_registry.input_shard()
    load_registry.configure(load_registry.InputShard())
    try:
        return load(
            record.uri,
            split=split,
            batch_size=32,
            shuffle=False,
            label_mode=record.label_mode,
            **load_options(record.preprocessing),
        )
    finally:
        load_registry.configure(shard)


def _row(example: Mapping[str, Any], dates: Collection[str]) -> dict[str, Any]:
    """Return a record as clients send it."""
    row = {}
    for feature, value in example.items():
        if feature.startswith(COLUMN_PREFIX):
            name = feature.removeprefix(COLUMN_PREFIX)
            row[name] = value.decode() if isinstance(value, bytes) else value
            if name in dates:
                row[name] = date_text(value)
    return row
