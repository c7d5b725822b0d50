"""Read a dataset as training would, in one of several ways; print seconds as JSON.

usage: read.py SIDE DATA EPOCHS

DATA is a dataset of timonel; keras reads the photographs beside it, in DATA-photographs.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SIDE = 150
BATCH = 32


def timonel(data: str, **options: Any) -> Any:
    from timonel.data import load

    return load(data, image_size=(SIDE, SIDE), batch_size=BATCH, **options)


def rows(data: str) -> Any:
    from timonel.data import load

    return load(data, batch_size=BATCH)


def keras(data: str) -> Any:
    import keras
    import tensorflow as tf

    batches = keras.utils.image_dataset_from_directory(
        f"{data}-photographs", image_size=(SIDE, SIDE), batch_size=BATCH, verbose=False
    )
    return batches.map(lambda x, y: (x / 255, y)).prefetch(tf.data.AUTOTUNE)


def loop(data: str) -> Any:
    """Read the records as TensorFlow's guide to performance does."""
    import tensorflow as tf

    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }

    def parse(payload: Any) -> Any:
        example = tf.io.parse_single_example(payload, features)
        pixels = tf.io.decode_jpeg(example["image"], channels=3)
        return tf.image.resize(pixels, (SIDE, SIDE)) / 255, example["label"]

    records = tf.data.TFRecordDataset(_shards(data), num_parallel_reads=tf.data.AUTOTUNE)
    parsed = records.shuffle(1000).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return parsed.batch(BATCH).prefetch(tf.data.AUTOTUNE)


def loop_rows(data: str) -> Any:
    import tensorflow as tf

    features = {f"column/{name}": tf.io.FixedLenFeature((), tf.float32) for name in "abc"}
    features["label"] = tf.io.FixedLenFeature((), tf.int64)
    records = tf.data.TFRecordDataset(_shards(data)).shuffle(10_000).batch(BATCH)
    return records.map(lambda payloads: tf.io.parse_example(payloads, features)).prefetch(2)


def grain(data: str) -> Any:
    """Decode with Pillow in threads, as Grain's tutorial does."""
    import grain
    import numpy as np
    from PIL import Image

    from timonel.data import Dataset

    def decode(example: dict[str, Any]) -> tuple[Any, int]:
        image = Image.open(io.BytesIO(example["image"])).convert("RGB").resize((SIDE, SIDE))
        return np.asarray(image, np.float32) / 255, example["label"]

    source = grain.MapDataset.source(Dataset.open(data).records("train"))
    cores = len(os.sched_getaffinity(0))
    options = grain.ReadOptions(num_threads=cores)
    return source.seed(0).shuffle().map(decode).batch(BATCH).to_iter_dataset(options)


def bound(data: str) -> Any:
    """Decode and resize bytes in memory, one batch after the other."""
    import tensorflow as tf

    from timonel.data import Dataset, ImagePreprocessing
    from timonel.data.preprocess import image_batch

    spec = ImagePreprocessing(channels=3, height=SIDE, width=SIDE, shrink_on_load=True)
    contents = tf.constant([each["image"] for each in Dataset.open(data).examples("train")])
    decode = tf.function(lambda part: image_batch(spec, part), autograph=False)
    starts = range(0, len(contents), BATCH)
    decode(contents[:BATCH])
    return _Repeated(lambda: ((decode(contents[s : s + BATCH]),) for s in starts))


class _Repeated:
    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Any:
        return iter(self._make())


SIDES: dict[str, Callable[[str], Any]] = {
    "timonel": timonel,
    "timonel-full": lambda data: timonel(data, shrink_on_load=False),
    "timonel-cache": lambda data: timonel(data, cache="memory", memory="16GB"),
    "timonel-memory": lambda data: timonel(data, memory="16GB"),
    "timonel-rows": rows,
    "keras": keras,
    "loop": loop,
    "loop-rows": loop_rows,
    "grain": grain,
    "bound": bound,
}


def _shards(data: str) -> list[str]:
    return sorted(str(path) for path in Path(data).glob("train-*.tfrecord"))


def main() -> None:
    side, data, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if side != "grain":
        import tensorflow as tf

        tf.zeros(1)  # TensorFlow's own start is the same on all sides
        import keras  # noqa: F401

        import timonel.data.loader  # noqa: F401
    begin, first_s, cost = time.perf_counter(), None, []
    batches = SIDES[side](data)
    for _ in range(max(1, epochs)):
        start_s, cpu_s, images = time.perf_counter(), time.process_time(), 0
        for batch in batches:
            if first_s is None:
                first_s = time.perf_counter() - begin
                if not epochs:
                    break
            images += len(batch[0])
        cost.append(
            {
                "wall_s": time.perf_counter() - start_s,
                "cpu_s": time.process_time() - cpu_s,
                "images": images,
            }
        )
    print(json.dumps({"first_s": first_s, "epochs": cost}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
