"""Export a model in its training process, where custom layers exist.

All tasks export, since reading a distributed variable may need all of them. Only the chief's files
are kept.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from timonel.data.sources.kinds.dates import MISSING_DATE
from timonel.errors import DataError, ModelError, SpecError
from timonel.models.exports import MAX_EXAMPLES
from timonel.models.savedmodel import export_live
from timonel.storage import digest_bytes
from timonel.training.worker import redirected_saves
from timonel.training.worker.fit.managed_fit import Fitted
from timonel.training.worker.inputs import fit_data

logger = logging.getLogger(__name__)

_exported_by_script: list[Any] = []

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
    _exported_by_script.append(model)
    with surrounding(model), redirected_saves.suspended():
        if preprocess is None:
            _export(folder, model, record, None, labels)
            return
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


def export_fitted(folder: Path, fitted: Fitted | None) -> str | None:
    """Export the last fitted model, unless the script exported one; return why it could not."""
    if _exported_by_script:
        return None
    if fitted is None:
        return "the script called no fit: there is no model to export"
    loaded = fit_data.find_loaded(fitted.data)
    if loaded is not None and loaded.is_changed:
        logger.warning(
            "the script transforms the data of timonel.data.load, which the served model will not: "
            "if it needs to, call context().export(model, preprocess=...)"
        )
    record = loaded.record if loaded else None
    try:
        with surrounding(fitted.model):
            _export(folder, fitted.model, record, fit_data.data_spec(fitted.data), None)
    except (ModelError, SpecError) as error:
        return f"the fitted model cannot be exported: {error}"
    return None


def _export(
    folder: Path,
    model: Any,
    record: load_registry.LoadRecord | None,
    spec: Any,
    labels: Sequence[str] | None,
) -> None:
    if record is None:
        logger.warning(
            "the model was not fitted on data of timonel.data.load: exporting it with tensor input"
        )
        export_live(
            model,
            folder,
            preprocessing=None,
            labels=labels,
            input_kind="tensor",
            label_mode=None,
            input_spec=spec,
        )
        return
    export_live(
        model,
        folder,
        preprocessing=record.preprocessing.model_dump(mode="json"),
        labels=labels or record.labels or None,
        input_kind=record.preprocessing.kind,
        label_mode=record.label_mode,
        transform=_transform(record.preprocessing, spec),
        columns=_columns(record.preprocessing),
        input_spec=spec,
        reference=_reference(model, record, spec),
    )


def _transform(
    preprocessing: ImagePreprocessing | TablePreprocessing, spec: Any
) -> Callable[[Any], Any]:
    if isinstance(preprocessing, ImagePreprocessing):
        return lambda contents: image_batch(preprocessing, contents)
    dates = _dates(preprocessing.columns)

    def rows(columns: Mapping[str, Any]) -> Any:
        # Clients send dates as texts, as they are in a table.
        values = {k: parse_dates(v, dates[k]) if k in dates else v for k, v in columns.items()}
        return _as_input(table_batch(preprocessing, values), spec)

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


def _reference(model: Any, record: load_registry.LoadRecord, spec: Any) -> dict[str, Any] | None:
    """Return the training pipeline's predictions for held-out records, for the export check."""
    try:
        dataset = Dataset.open(record.uri)
        split = next((name for name in ("test", "validation") if dataset.count(name)), None)
        if split is None:
            return None
        examples = list(itertools.islice(dataset.examples(split), MAX_EXAMPLES))
        outputs, labels = _predict(model, record, split, len(examples), spec)
    except DataError as error:  # the records are damaged
        logger.warning("no reference predictions in the export: %s", error)
        return None
    if outputs is None:
        return None
    keys = [example[KEY_FEATURE] for example in examples]
    found = {"keys": keys, "scores": outputs, "labels": labels, "digests": None}
    if isinstance(record.preprocessing, ImagePreprocessing):
        source = Path(dataset.manifest.source.uri)
        digests = [digest_bytes(example[IMAGE_FEATURE]) for example in examples]
        return {**found, "sources": [str(source / key) for key in keys], "digests": digests}
    dates = _dates(record.preprocessing.columns).keys()
    return {**found, "sources": [_row(example, dates) for example in examples]}


def _predict(
    model: Any, record: load_registry.LoadRecord, split: str, count: int, spec: Any
) -> tuple[Any, Any] | tuple[None, None]:
    scores, labels, seen = [], [], 0
    for x, y in _load_again(record, split):
        output = model(_as_input(x, spec), training=False)
        if not hasattr(output, "shape"):
            logger.warning("no reference predictions in the export: the model has several outputs")
            return None, None
        scores.append(np.asarray(output, np.float32))
        labels.append(np.asarray(y))
        seen += len(scores[-1])
        if seen >= count:
            break
    return np.concatenate(scores)[:count], np.concatenate(labels)[:count]


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
                row[name] = "" if value == MISSING_DATE else f"{np.datetime64(value, 's')}Z"
    return row
