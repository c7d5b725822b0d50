"""Give each task its own file for ``Dataset.cache(filename)``, and remove stale locks.

TensorFlow guards such a file by a lock file, ``<filename>_0.lockfile``, while the first pass writes
it. Two tasks cannot write the same file, and the lock of a killed task makes every later one fail.
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
    """Make each task's cache files unique; the chief's keep their names."""
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
