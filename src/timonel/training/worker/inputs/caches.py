"""``Dataset.cache(filename)`` in a job: a file for each task, and none locked by one that is gone.

TensorFlow guards such a file by another, ``<filename>_0.lockfile``, for as long as the first pass
writes it. Two tasks cannot write one, and what a killed task leaves behind fails every later one.
"""

from __future__ import annotations

import glob
import logging
import os
from pathlib import Path
from typing import Any

from timonel.training.worker.task.cluster import Cluster

logger = logging.getLogger(__name__)


def install(cluster: Cluster) -> None:
    """Let the file of the script's caches be this task's own; the chief's keeps its name."""
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    original = tf.data.Dataset.cache

    def cache(self: Any, filename: Any = "", name: str | None = None) -> Any:
        if isinstance(filename, str | os.PathLike) and os.fspath(filename):
            place = os.fspath(filename)
            if not cluster.is_chief:
                place = f"{place}-{cluster.task_id}"
            if cluster.generation > 1:
                _unlock(place)
            filename = place
        return original(self, filename, name=name)

    tf.data.Dataset.cache = cache


def _unlock(place: str) -> None:
    for lock in glob.glob(f"{glob.escape(place)}_*.lockfile"):  # noqa: PTH207 - a prefix, no folder
        Path(lock).unlink(missing_ok=True)
        logger.info("the cache %s is written anew: the restart broke it off", place)
