"""Load a dataset as batches: ``timonel.data.load``."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from timonel.arguments import checked
from timonel.data import load_registry
from timonel.data.dataset import Dataset, check_split
from timonel.data.load_options import (
    channels_of,
    dataset_location,
    image_size_of,
    label_mode_of,
    memory_limit,
    shared_size,
)
from timonel.data.load_registry import LabelMode, LoadRecord, Stream
from timonel.data.preprocess import image_batch, table_batch
from timonel.data.preprocessing import (
    ImagePreprocessing,
    Preprocessing,
    TablePreprocessing,
    table_preprocessing,
)
from timonel.data.random_access import Fetch, cached, open_store, row_layout
from timonel.data.row_cache import RowCache
from timonel.data.schedule import LastBatch, Schedule
from timonel.data.schema import (
    COLUMN_PREFIX,
    IMAGE_FEATURE,
    LABEL_FEATURE,
    ImageColumn,
    ImageSchema,
    MaskColumn,
    Split,
)
from timonel.errors import InputError, SpecError
from timonel.storage import is_local, local_path
from timonel.storage.digests import digest_bytes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, from malloc.h."""
_KEPT_BYTES = 64 * 2**20

do_not_convert = tf.autograph.experimental.do_not_convert
Compute = Callable[[Any], Any]
"""Map indices int64 [B] to a batch (x, y)."""
_CACHE_FORMAT = 1
_PREFETCHED_BATCHES = 2


@checked()
def load(  # noqa: PLR0913 - one call says all; each option has a default that fits
    path: str | os.PathLike[str] | Dataset | None = None,
    *,
    split: str = "train",
    batch_size: int = 32,
    image_size: tuple[int, int] | Literal["auto"] | None = None,
    channels: int | None = None,
    scale: float = 1 / 255,
    offset: float = 0.0,
    method: Literal["bilinear", "nearest", "bicubic", "area"] = "bilinear",
    shrink_on_load: bool = True,
    features: Literal["vector", "columns"] = "vector",
    label_mode: Literal["auto", "int", "onehot", "multihot", "binary", "regression"] = "auto",
    shuffle: bool | None = None,
    seed: int = 0,
    last_batch: LastBatch = "short",
    memory: str | float = "128MB",
    cache: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> Any:
    """Return a ``tf.data.Dataset`` of (x, y) batches of one split.

    Images are float32 [B, H, W, C]. Rows are float32 [B, F]: z-scores of numbers (0 for a missing
    value), one-hot categories, parts of dates and the words of texts, based on statistics and
    vocabulary of the training split. Labels
    are int64 [B], one-hot or multi-hot float32 [B, classes], or float32 [B, 1] for ``binary`` and
    ``regression``.

    With ``features="columns"``, rows are a dict by column. Numbers are float32 [B, 1], z-scores as
    in the vector; categories float32 [B, words + 1], text, JSON and bytes string [B], dates int64
    [B], lists of numbers float32 [B, N] as they are, images float32 [B, H, W, C] or
    [B, N, H, W, C], masks int32 [B, H, W], boxes float32 [B, N, 4] as [ymin, xmin, ymax, xmax],
    with their classes int32 [B, N] by ``NAME/class``. N is the longest list of the dataset; shorter
    ones are padded with 0, boxes with -1, and ``NAME/count`` int32 [B] has their lengths.

    In a distributed job, each worker decodes only its part of every global batch. In training
    (``shuffle``) all global batches have full size; in evaluation every record is read by exactly
    one worker. No batch is empty, and all workers have the same number of batches.

    The dataset has these attributes:

    - ``class_names``: the labels in the order of their numbers;
    - ``class_weight``: for classes, the argument of ``model.fit`` that gives all classes of the
      split the same total weight;
    - ``target``: for a regression, the mean, std, minimum and maximum of the training split's
      labels;
    - ``seek(epoch, step)``: starts the next iterator there, and later ones at the next epochs.

    Args:
        path: A converted dataset, or its location; by default the one given with ``--data``.
        split: ``train``, ``validation`` or ``test``.
        batch_size: Rows of a global batch, over all workers; rows per replica in a job with
            ``--batch-size-is per-replica``.
        image_size: Height and width; optional if all images have one size. ``auto`` is that
            size, or a square of the median side, scaled down to at most 128 pixels per side.
        channels: 1 or 3, or 4 for PNG only; by default 1 if all images are grey, else 3.
        scale: Factor for pixels from 0 to 255.
        offset: Added to the scaled pixels.
        method: Interpolation method for resizing.
        shrink_on_load: Decode JPEGs at 1/2, 1/4 or 1/8 of their size if that covers the target
            size, except for ``nearest``. The exported model does the same.
        features: One vector per row, or a dict with one array per column.
        label_mode: ``auto`` is ``int`` for classes, ``multihot`` for rows with several, and
            ``regression`` for numbers.
        shuffle: Shuffle each epoch; by default for ``train`` only.
        seed: Seed of the shuffle.
        last_batch: ``short``; ``drop``, so that all batches have ``batch_size`` rows; or ``pad``:
            batches are (x, y, weights) of that size, with weights of 0 for padding.
        memory: A split up to this size is kept in memory, a larger one is read while training.
        cache: Keep preprocessed rows after their first use: ``memory``, up to the size ``memory=``,
            or a folder on a local disk, for other workers and later runs as well.
        name: The dataset of ``--data NAME=URI`` to load if ``path`` is not given.

    Raises:
        NotFoundError: The dataset was not given or does not exist.
        InputError: The options do not fit the dataset, or it has fewer records than replicas.
        CorruptError: A shard is damaged.
    """
    if not isinstance(path, Dataset):
        path = Dataset.open(path if path is not None else dataset_location(name))
    dataset, chosen = path, check_split(split)
    if not dataset.count(chosen):
        raise InputError(
            f"the {split} split of {dataset.uri} is empty",
            hint="convert with other --splits",
        )
    preprocessing: Preprocessing
    schema = dataset.manifest.record_schema

    def image_of(images: ImageSchema | ImageColumn | MaskColumn) -> ImagePreprocessing:
        height, width = image_size_of(images, image_size, dataset.uri)
        if isinstance(images, MaskColumn):
            return ImagePreprocessing(
                channels=1, height=height, width=width, method="nearest", scale=1.0
            )
        return ImagePreprocessing(
            channels=channels_of(images, channels),
            height=height,
            width=width,
            method=method,
            scale=scale,
            offset=offset,
            shrink_on_load=shrink_on_load,
        )

    if isinstance(schema, ImageSchema):
        if features != "vector":
            raise SpecError(
                f"features={features!r} is for tables, but {dataset.uri} has images and labels",
                hint="leave it out",
            )
        preprocessing = image_of(schema)
    else:
        image_size = shared_size(schema, image_size, dataset.uri)
        preprocessing = table_preprocessing(schema, features, image_of)
    schedule = Schedule(
        records=dataset.count(chosen),
        batch=load_registry.input_shard().global_batch(int(batch_size)),
        shard=load_registry.input_shard(),
        shuffle=chosen == "train" if shuffle is None else shuffle,
        seed=int(seed),
        last_batch=last_batch,
    )
    mode = label_mode_of(dataset, label_mode)
    stream = Stream(_record(dataset, chosen, schedule, preprocessing, mode, name), schedule)
    limit = memory_limit(memory)
    # Cached rows make records in memory superfluous.
    fetch = open_store(dataset, chosen, limit if cache is None else 0)
    compute = _compute(dataset, stream.record, fetch)
    if cache is not None:
        compute = _cached(compute, stream.record, cache, limit)
    _keep_memory()
    result = _pipeline(compute, stream)
    load_registry.register(result, stream)
    # Like Keras' image_dataset_from_directory, so that scripts need not count classes.
    result.class_names = list(dataset.labels)
    result.class_weight = class_weight(dataset, chosen)
    result.target = dataset.manifest.target
    result.seek = stream.seek
    return result


def class_weight(dataset: Dataset, split: Split) -> dict[int, float] | None:
    """Return weights by label number that balance the classes of a split.

    They are those of scikit-learn's "balanced": records / (classes * records of the class).
    """
    if dataset.task != "classification":
        return None
    counts = dataset.manifest.label_counts[split]
    present = {number: counts.get(label, 0) for number, label in enumerate(dataset.labels)}
    present = {number: count for number, count in present.items() if count}
    total = sum(present.values())
    return {number: total / (len(present) * count) for number, count in present.items()}


def _compute(dataset: Dataset, record: LoadRecord, fetch: Fetch) -> Compute:
    inputs, labels = _inputs(dataset, record.preprocessing), _labels(record)

    def compute(rows: Any) -> Any:
        found = fetch(rows)
        return inputs(found), labels(found[LABEL_FEATURE])

    return compute


def _cached(
    compute: Compute, record: LoadRecord, place: str | os.PathLike[str], limit: int
) -> Compute:
    """Return ``compute`` with a cache in memory or a folder."""
    no_rows = tf.data.Dataset.from_tensors(tf.zeros([0], tf.int64))
    rows = no_rows.map(do_not_convert(lambda rows: compute(tf.ensure_shape(rows, [None]))))
    layout = row_layout(rows.element_spec, record.records)
    if place == "memory":
        return cached(compute, rows.element_spec, RowCache.in_memory(layout, limit))
    if not is_local(place):
        raise InputError(
            f"expected cache= as a local folder, got {place}",
            hint="use a folder on a local disk, or cache='memory'",
        )
    # Releases of TensorFlow may decode and resize differently.
    of = (_CACHE_FORMAT, tf.__version__, record.digest, record.split, record.label_mode)
    name = digest_bytes(repr((*of, record.preprocessing.model_dump_json(), layout)).encode())
    name = name.removeprefix("sha256:")[:32]
    return cached(compute, rows.element_spec, RowCache.on_disk(layout, local_path(place), name))


def _keep_memory() -> None:
    """Let the allocator keep the memory of freed batches for the next ones.

    glibc returns large blocks to the system, which then has to zero pages for each new batch.
    Limits in the environment have precedence. A process grows by 30 to 80 MB.
    """
    if "MALLOC_" in " ".join(os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    # Other C libraries lack this function.
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _pipeline(compute: Compute, stream: Stream) -> Any:
    last_batch = stream.schedule.last_batch

    def batch(rows: Any) -> Any:
        if last_batch == "short":
            return compute(tf.boolean_mask(rows, rows >= 0))
        if last_batch == "drop":
            return compute(rows)
        weights = tf.cast(rows >= 0, tf.float32)
        return *compute(tf.maximum(rows, 0)), weights

    # AutoGraph would take most of the time until the first batch, and nothing here needs it.
    # Of AUTOTUNE and one or two batches per core, one was the fastest on a busy machine
    # (photographs: 0.75 s an epoch against 1.3 s of both others) and needs the least memory.
    cores = len(os.sched_getaffinity(0))
    result = steps_of(stream).map(
        do_not_convert(batch), num_parallel_calls=cores, deterministic=True
    )
    result = result.prefetch(_PREFETCHED_BATCHES)
    options = tf.data.Options()
    # Nothing is left to tune, and the autotuner delays the end of an epoch: the iterators of
    # MultiWorkerMirroredStrategy wait for its sleep, of up to a minute, when they are destroyed.
    options.autotune.enabled = False
    if stream.schedule.shard.count > 1:
        policy = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_distribute.auto_shard_policy = policy
    return result.with_options(options)


def steps_of(stream: Stream) -> Any:
    """Return a dataset of record numbers int64 [width], one row per step."""
    shape = (stream.schedule.steps, stream.schedule.width)

    def begin(_: Any) -> Any:
        # Called once by each iterator. The declared shape lets Keras know the number of steps;
        # after a seek into the middle of an epoch the first iterator has fewer.
        rows = tf.numpy_function(stream.begin, [], tf.int64)
        rows.set_shape(shape)
        return rows

    return tf.data.Dataset.from_tensors(0).map(do_not_convert(begin)).unbatch()


def _inputs(dataset: Dataset, spec: Preprocessing) -> Callable[[dict[str, Any]], Any]:
    if isinstance(spec, TablePreprocessing):
        names = {COLUMN_PREFIX + column.column: column.column for column in spec.columns}
        return lambda found: table_batch(spec, {names[key]: found[key] for key in names})
    schema = dataset.manifest.record_schema
    known = isinstance(schema, ImageSchema) and schema.size == (spec.height, spec.width)
    return lambda found: image_batch(spec, found[IMAGE_FEATURE], resize=not known)


def _labels(record: LoadRecord) -> Callable[[Any], Any]:
    if record.label_mode == "int":
        return lambda labels: labels
    if record.label_mode == "onehot":
        return lambda labels: tf.one_hot(labels, len(record.labels))
    if record.label_mode == "multihot":
        return lambda labels: tf.reduce_sum(
            tf.one_hot(labels.to_tensor(-1), len(record.labels)), axis=1
        )
    return lambda labels: tf.cast(labels, tf.float32)[:, tf.newaxis]


def _record(
    dataset: Dataset,
    split: Split,
    schedule: Schedule,
    preprocessing: Preprocessing,
    label_mode: LabelMode,
    name: str | None,
) -> LoadRecord:
    image_size = None
    if isinstance(preprocessing, ImagePreprocessing):
        image_size = (preprocessing.height, preprocessing.width)
    return LoadRecord(
        uri=dataset.uri,
        digest=dataset.digest,
        split=split,
        batch_size=schedule.batch,
        records=schedule.records,
        steps=schedule.steps,
        preprocessing=preprocessing,
        task=dataset.task,
        labels=dataset.labels,
        label_mode=label_mode,
        image_size=image_size,
        shuffle=schedule.shuffle,
        seed=schedule.seed,
        shard=schedule.shard,
        name=name,
    )
