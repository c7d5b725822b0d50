"""Export a live Keras model as a SavedModel that needs no Python.

TensorFlow processes only.

An export is one folder, which appears atomically:

    saved_model/       the SavedModel, in the layout of TensorFlow Serving
    export.json        its inputs and outputs, and its origin
    architecture.json  its layers, if Keras can describe them
    reference.jsonl    held-out predictions of the training pipeline, for the check

TensorFlow traces and saves the functions together with the variables and lookup tables they use.
Keras' ExportArchive does the same, but has no public way to add an asset; its
``from_concrete_functions`` conversions lose the weights of Keras 3 models.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from timonel._version import __version__
from timonel.errors import ModelError, SpecError
from timonel.models.architecture import write_architecture
from timonel.models.exports import MAX_EXAMPLES, ReferenceExample, write_reference
from timonel.models.inspection import signatures_of
from timonel.models.keras_model import (
    ModelInputs,
    inputs_of,
    is_without_call,
    keras_of,
    parts_of,
    summary_of,
)
from timonel.models.schema import (
    EXPORT_FILE,
    REFERENCE_FILE,
    SAVED_MODEL_DIR,
    Export,
    InputKind,
    OutputKind,
    Preparation,
)
from timonel.models.signatures import (
    RawInput,
    TracedModel,
    Transform,
    image_input,
    per_example,
    rename_inputs,
    scores_of,
    table_input,
    trace_model,
    trace_parts,
)
from timonel.storage import digest_file, digest_tree, publish_dir, write_document
from timonel.storage.atomic import aside_dir, unwritable

NO_TRANSFORMS = "the transforms of the training data are unknown"


def export_live(  # noqa: PLR0913 - the contract between training and models, all keywords
    model: Any,
    folder: str | Path,
    *,
    preprocessing: Mapping[str, Any] | None,
    labels: Sequence[str] | None,
    input_kind: InputKind,
    label_mode: str | None,
    transform: Transform | None = None,
    columns: Mapping[str, str] | None = None,
    preprocess: Transform | None = None,
    input_spec: Any = None,
    reference: Mapping[str, Any] | str | None = None,
    replays: bool = False,
    note: str | None = None,
) -> Export:
    """Export ``model`` into ``folder``, replacing what is there.

    Under MultiWorkerMirroredStrategy every worker must call this, as TensorFlow demands; only the
    chief's folder is kept. The others write to a temporary folder beside it.

    Args:
        model: A built Keras 3 or tf-keras model.
        folder: The export folder of the job.
        preprocessing: The transforms applied by ``transform``, as JSON; only recorded.
        labels: The labels in the order of the model's outputs; None for a regression.
        input_kind: The kind of raw input: ``image`` files, rows of a ``table``, or ``tensor`` if
            only the model's own input is known.
        label_mode: The label mode used in training; only recorded.
        transform: Turns a batch into the model's input: image files from a string tensor [B], rows
            from a dictionary of tensors [B]. Without it, only tensor signatures are exported.
        columns: For a table, ``float32`` or ``string`` by column, in order.
        preprocess: A user function instead of ``transform``: it takes one example (a string scalar,
            or a dictionary of scalars) and returns the model's input without a batch axis.
        input_spec: The structure of TensorSpec seen by ``fit``, for subclassed models.
        reference: Held-out examples: ``keys``; ``sources``, each a raw file's absolute path or a
            row by column; ``outputs``, the model's own outputs for them by name; ``labels``, the
            true indices (or one-hot rows) or values; optionally ``digests``. Or the reason for
            having none.
        replays: Whether ``transform`` also applies functions of the script, which
            ``preprocessing`` does not have.
        note: Why only tensor signatures are exported.

    Raises:
        ModelError: The model has not been built, or cannot be saved as a graph.
        SpecError: The arguments contradict each other.
        InputError: The folder cannot be written, for example because the disk is full.
    """
    package, keras_version = keras_of(model)
    parts = parts_of(model) if is_without_call(model) else {}
    raw = None
    with _as_input_errors(Path(folder)), _as_model_errors(model):
        if parts:
            traced = trace_parts(parts)
        else:
            inputs = inputs_of(model, input_spec)
            raw = _raw_input(input_kind, transform, columns, preprocess, inputs)
            several = label_mode == "multihot"
            traced = trace_model(model, inputs, raw, labels, several_labels=several)
    with _as_input_errors(Path(folder)), _destination(Path(folder), model) as target:
        with _as_model_errors(model):
            variables = _save(model, traced, target / SAVED_MODEL_DIR, labels)
            write_architecture(target, model, package, variables)
        kept = _write_predictions(target / REFERENCE_FILE, reference, traced.meaning, labels)
        saved = target / SAVED_MODEL_DIR
        export = Export(
            created_at=time.time(),
            digest=digest_tree(saved),
            size_bytes=sum(path.stat().st_size for path in saved.rglob("*") if path.is_file()),
            signatures=signatures_of(saved),
            labels=tuple(labels) if labels else None,
            label_mode=label_mode,
            preparation=Preparation(
                input_kind=input_kind if raw else "tensor",
                transforms=None if preprocess else preprocessing,
                source=_source(raw, preprocess, replays=replays),
            ),
            meaning=traced.meaning,
            model=summary_of(model),
            reference=kept,
            unchecked=reference if isinstance(reference, str) else None,
            notes=_notes(traced.meaning, raw, labels, note, parts),
            versions={
                "tensorflow": tf.__version__,
                package: keras_version,
                "timonel": __version__,
            },
        )
        write_document(target / EXPORT_FILE, "export", export.model_dump(mode="json"))
    return export


def is_chief(strategy: Any) -> bool:
    """Return whether this process writes the files to keep under ``strategy``."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "worker":
        return resolver.task_id == 0 and "chief" not in resolver.cluster_spec().jobs
    return bool(resolver.task_type == "chief")


def _raw_input(
    input_kind: InputKind,
    transform: Transform | None,
    columns: Mapping[str, str] | None,
    preprocess: Transform | None,
    inputs: ModelInputs,
) -> RawInput | None:
    apply = per_example(preprocess, inputs) if preprocess is not None else transform
    if apply is None:
        return None
    if input_kind == "image":
        return image_input(apply)
    if input_kind == "table":
        return table_input(columns or {}, apply)
    raise SpecError(
        f"a transform needs the input kind 'image' or 'table', got {input_kind!r}",
        hint="set input_kind='image', or input_kind='table' with columns",
    )


def _source(
    raw: RawInput | None, preprocess: Transform | None, *, replays: bool
) -> Literal["data.load", "data.load and map", "preprocess", "unknown"]:
    if raw is None:
        return "unknown"
    if preprocess is not None:
        return "preprocess"
    return "data.load and map" if replays else "data.load"


def _save(model: Any, traced: TracedModel, folder: Path, labels: Sequence[str] | None) -> list[Any]:
    """Save the signatures, and return the variables in the order of the SavedModel."""
    functions = {name: each.function for name, each in traced.signatures.items()}
    root = tf.Module()
    root.variables_used = _variables(model, functions.values())
    root.resources = _resources(functions.values())
    with aside_dir(folder) as scratch:
        if labels:
            path = scratch / "labels.txt"
            path.write_text("".join(f"{label}\n" for label in labels))
            # An asset that no function uses: the SavedModel lists it, the graph does not hold its
            # path.
            root.labels = tf.saved_model.Asset(str(path))
        tf.saved_model.save(root, str(folder), signatures=functions)
    rename_inputs(folder, {name: each.names for name, each in traced.signatures.items()})
    return list(root.variables_used)


def _variables(model: Any, functions: Iterable[Any]) -> list[Any]:
    """Return the signatures' variables; a distributed one as a whole, once."""
    used = {
        id(variable): variable
        for function in functions
        for variable in function.get_concrete_function().variables
    }
    kept = []
    for variable in model.variables:
        # Keras 3 wraps TensorFlow's variables; a distributed one holds one for each replica.
        own = variable if isinstance(variable, tf.Variable) else variable.value
        replicas = {id(own), *(id(replica) for replica in getattr(own, "values", ()))}
        if replicas & used.keys():
            kept.append(own)
            used = {number: each for number, each in used.items() if number not in replicas}
    return [*kept, *used.values()]


def _resources(functions: Iterable[Any]) -> list[Any]:
    """Return the lookup tables and similar resources of traced functions."""
    # Functions list handles only, and saving needs the Python objects. They may belong to a layer,
    # or to a function that the script gave to `Dataset.map`.
    handles = {
        id(handle)
        for function in functions
        for handle in function.get_concrete_function().captured_inputs
    }
    kind = tf.saved_model.experimental.TrackableResource
    found = (each for each in gc.get_objects() if issubclass(type(each), kind))
    return [resource for resource in found if id(resource.resource_handle) in handles]


def _write_predictions(
    path: Path,
    reference: Mapping[str, Any] | str | None,
    meaning: OutputKind,
    labels: Sequence[str] | None,
) -> dict[str, Any] | None:
    """Write the training pipeline's predictions to ``path``, as scores or values.

    Args:
        reference: See `export_live`.
        meaning: The kind of the model's output.

    Returns:
        The entry of the export document; None if there is nothing to compare.
    """
    if reference is None or isinstance(reference, str) or not len(reference["keys"]):
        return None
    rows = {name: np.asarray(each, np.float32) for name, each in reference["outputs"].items()}
    if meaning.task == "classification":
        rows = {"scores": scores_of(meaning, next(iter(rows.values()))).numpy()}
    count = min(len(reference["keys"]), MAX_EXAMPLES)
    outputs = np.concatenate([rows[name][:count].reshape(count, -1) for name in sorted(rows)], 1)
    # Several labels of an example, or several outputs, have no single truth.
    is_one = meaning.task != "tensor" and not meaning.several
    truth = _true_labels(reference.get("labels"), labels, count) if is_one else None
    examples = [
        ReferenceExample(
            key=str(key),
            source=_plain_source(_at(reference.get("sources"), number)),
            digest=_at(reference.get("digests"), number),
            scores=tuple(outputs[number].tolist()),
            label=_at(truth, number),
        )
        for number, key in enumerate(reference["keys"][:count])
    ]
    write_reference(path, examples)
    return {"file": path.name, "digest": digest_file(path), "examples": len(examples)}


def _at(values: Sequence[Any] | None, number: int) -> Any:
    return None if values is None else values[number]


def _plain_source(source: Any) -> Any:
    if not isinstance(source, Mapping):
        return None if source is None else str(source)
    return {name: getattr(value, "item", lambda v=value: v)() for name, value in source.items()}


def _true_labels(values: Any, labels: Sequence[str] | None, count: int) -> list[float] | None:
    """Return true labels as class indices or values.

    They are given as indices, values, one-hot rows or names. None if they are anything else, such
    as images.
    """
    if values is None:
        return None
    array = np.asarray(values)[:count]
    if array.dtype == object or len(array) < count or (not labels and array.size != count):
        return None
    if array.dtype.kind in "US":
        return [float((labels or ()).index(str(name))) for name in array.ravel()]
    if labels and array.ndim == 2 and array.shape[1] > 1:
        array = array.argmax(axis=1)
    return [float(value) for value in array.reshape(len(array), -1)[:, 0]]


@contextlib.contextmanager
def _destination(folder: Path, model: Any) -> Iterator[Path]:
    strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
    if is_chief(strategy):
        with publish_dir(folder, replace=True) as target:
            yield target
    else:
        with aside_dir(folder) as scratch:
            yield scratch


@contextlib.contextmanager
def _as_model_errors(model: Any) -> Iterator[None]:
    # Tracing runs code of Keras and of the user: any exception means that no graph was made.
    try:
        yield
    except (ModelError, SpecError):
        raise
    except Exception as error:
        if _is_full_disk(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"cannot save {type(model).__name__} '{getattr(model, 'name', '?')}' as a TensorFlow "
            f"graph: {type(error).__name__}: {first[:300]}",
            hint="use TensorFlow or keras.ops in call and preprocess, and make lookup tables "
            "attributes of a layer",
        ) from error


@contextlib.contextmanager
def _as_input_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(folder, error) from error


def _is_full_disk(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    # For TensorFlow's own files the system's reason is in the message only.
    return isinstance(error, tf.errors.ResourceExhaustedError) and os.strerror(errno.ENOSPC) in str(
        error
    )


def _notes(
    meaning: OutputKind,
    raw: RawInput | None,
    labels: Sequence[str] | None,
    note: str | None,
    parts: Collection[str],
) -> tuple[str, ...]:
    notes = []
    if raw is None:
        notes.append(f"the model takes tensors, not raw files or rows: {note or NO_TRANSFORMS}")
    if parts:
        first, *others = parts
        rest = f"; signature_name= asks for {', '.join(others)}" if others else ""
        notes.append(f"serving_default is the part {first}{rest}")
    if labels and meaning.task == "tensor":
        notes.append(f"the output has no labels: {meaning.because}")
    return tuple(notes)
