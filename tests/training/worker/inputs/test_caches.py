from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from timonel.training.worker.inputs import caches
from timonel.training.worker.task.cluster import Cluster

TASKS = {"chief": ("localhost:1",), "worker": ("localhost:2",)}
ORIGINAL = tf.data.Dataset.cache


@pytest.fixture(autouse=True)
def _original_cache() -> Iterator[None]:
    yield
    tf.data.Dataset.cache = ORIGINAL


def numbers(place: Path) -> Any:
    return tf.data.Dataset.range(4).cache(str(place))


def test_what_a_killed_task_was_writing_is_written_anew(tmp_path: Path) -> None:
    lock = tmp_path / "c_0.lockfile"
    lock.touch()
    caches.install(Cluster(TASKS, "chief", 0, generation=1))
    with pytest.raises(tf.errors.AlreadyExistsError, match="lockfile already exists"):
        list(numbers(tmp_path / "c"))  # a first generation's may be somebody else's
    lock.touch()
    caches.install(Cluster(TASKS, "chief", 0, generation=2))
    assert list(numbers(tmp_path / "c").as_numpy_iterator()) == [0, 1, 2, 3]
    assert list(numbers(tmp_path / "c").as_numpy_iterator()) == [0, 1, 2, 3]


def test_each_task_has_a_file_of_its_own(tmp_path: Path) -> None:
    begun = iter(numbers(tmp_path / "c"))
    next(begun)
    caches.install(Cluster(TASKS, "worker", 0))
    assert len(list(numbers(tmp_path / "c"))) == 4
    assert (tmp_path / "c-worker-0.index").exists()
    assert len(list(tf.data.Dataset.range(3).cache())) == 3
