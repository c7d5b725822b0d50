"""Export a live Keras model as a SavedModel that needs no Python.

TensorFlow processes only.

An export is one folder, which appears atomically:

    saved_model/       the SavedModel, in the layout of TensorFlow Serving
    export.json        its inputs and outputs, and its origin
    reference.jsonl    held-out predictions of the training pipeline, for the check

TensorFlow traces and saves the functions together with the variables and lookup tables they use.
Keras' ExportArchive does the same, but has no public way to add an asset; its
``from_concrete_functions`` conversions lose the weights of Keras 3 models.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from timonel._version import __version__
from timonel.errors import ModelError, SpecError
from timonel.models.inspection import signatures_of
from timonel.models.predictions import keep_predictions
from timonel.models.reading import ModelInputs, inputs_of, keras_of, summary_of
from timonel.models.renaming import rename_inputs
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
    Graph,
    RawInput,
    Transform,
    build_graph,
    image_input,
    per_example,
    table_input,
)
from timonel.storage import digest_tree, publish_dir, write_document
from timonel.storage.atomic import aside_dir, unwritable


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
    reference: Mapping[str, Any] | None = None,
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
            row by column; ``scores``, the model's own outputs for them, as returned by ``predict``;
            ``labels``, the true indices (or one-hot rows) or values; optionally ``digests``.

    Raises:
        ModelError: The model has not been built, or cannot be saved as a graph.
        SpecError: The arguments contradict each other.
        InputError: The folder cannot be written, for example because the disk is full.
    """
    package, keras_version = keras_of(model)
    inputs = inputs_of(model, input_spec)
    raw = _raw_input(input_kind, transform, columns, preprocess, inputs)
    with _as_input_errors(Path(folder)), _as_model_errors(model):
        graph = build_graph(model, inputs, raw, labels)
    with _as_input_errors(Path(folder)), _destination(Path(folder), model) as target:
        with _as_model_errors(model):
            _save(model, graph, target / SAVED_MODEL_DIR, labels, preprocess)
        kept = keep_predictions(target / REFERENCE_FILE, reference, graph.meaning, labels)
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
                source="preprocess" if preprocess else "data.load" if raw else "unknown",
            ),
            meaning=graph.meaning,
            model=summary_of(model),
            reference=kept,
            notes=_notes(graph.meaning, raw, labels),
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
        f"expected the input kind image or table with a transform, got {input_kind!r}",
        hint="say what the raw input is: input_kind='image', or 'table' with columns",
    )


def _save(
    model: Any,
    graph: Graph,
    folder: Path,
    labels: Sequence[str] | None,
    preprocess: Transform | None,
) -> None:
    functions = {name: traced.function for name, traced in graph.signatures.items()}
    root = tf.Module()
    root.variables_used = _variables(model, functions.values())
    root.resources = [*_resources(model), *_resources(preprocess)]
    with aside_dir(folder) as scratch:
        if labels:
            path = scratch / "labels.txt"
            path.write_text("".join(f"{label}\n" for label in labels))
            # An asset that no function uses: the SavedModel lists it, the graph does not hold its
            # path.
            root.labels = tf.saved_model.Asset(str(path))
        tf.saved_model.save(root, str(folder), signatures=functions)
    rename_inputs(folder, {name: traced.names for name, traced in graph.signatures.items()})


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


def _resources(owner: Any) -> list[Any]:
    """Return lookup tables and similar resources, not listed by traced functions."""
    if not isinstance(owner, tf.Module) and not hasattr(owner, "variables"):
        return []  # nothing, or a plain function
    kind = tf.saved_model.experimental.TrackableResource
    found = tf.train.TrackableView(owner).descendants()
    return [resource for resource in found if isinstance(resource, kind)]


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
            f"expected {type(model).__name__} '{getattr(model, 'name', '?')}' to be a graph of "
            f"TensorFlow operations, got {type(error).__name__}: {first[:300]}",
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
    meaning: OutputKind, raw: RawInput | None, labels: Sequence[str] | None
) -> tuple[str, ...]:
    notes = []
    if raw is None:
        notes.append(
            "no transforms are known, so the model takes its own tensors, not raw files: train "
            "from timonel.data.load, or export with preprocess="
        )
    if labels and meaning.task == "tensor":
        notes.append(f"the output has no labels: {meaning.because}")
    return tuple(notes)
