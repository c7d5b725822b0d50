"""Copies of a model's state that Keras and TensorFlow make themselves.

The Kerases' own ``BackupAndRestore`` goes on saving, and restores nothing where a job resumes.

Its copy and our checkpoint are of different steps where a process was killed between the two. Its
weights would be overwritten by ours while its number of epochs stood, so that an epoch would never
be trained; and a copy that the kill broke off would be an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any


def checkpoint_saver() -> Any:
    """Return the class whose ``save`` writes every TensorFlow checkpoint.

    ``tf.train.Checkpoint`` and CheckpointManager record the path that they gave to it.
    """
    from tensorflow.python.checkpoint import checkpoint  # noqa: PLC0415 - TensorFlow loads here

    return checkpoint.TrackableSaver


@contextlib.contextmanager
def not_restored(keras: Any) -> Iterator[None]:
    """Let ``BackupAndRestore`` of this Keras begin as if there were no copy, within the block."""
    if keras.__name__ == "keras":
        holder, name = keras.callbacks.BackupAndRestore, "_load_model"
    else:
        from tf_keras.src.distribute import worker_training_state  # noqa: PLC0415 - Keras loads here

        holder, name = worker_training_state.WorkerTrainingState, "restore"
    original = getattr(holder, name)
    setattr(holder, name, lambda _self: None)
    try:
        yield
    finally:
        setattr(holder, name, original)


@contextlib.contextmanager
def moved(callback: Any, place: Callable[[Any], Any]) -> Iterator[None]:
    """Let Keras 3's ``BackupAndRestore`` work on a copy of its folder within the block.

    Args:
        callback: The callback.
        place: Returns the folder of the copy.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    folder = os.fspath(callback.backup_dir).rstrip("/")
    copy = place(folder)
    # A backup of an earlier job: all tasks must begin at the same epoch.
    for parent, _, names in tf.io.gfile.walk(folder):
        target = f"{copy}/{parent[len(folder) :]}"
        tf.io.gfile.makedirs(target)
        for name in names:
            tf.io.gfile.copy(f"{parent}/{name}", f"{target}/{name}", overwrite=True)
    held = {
        name: value
        for name, value in vars(callback).items()
        if isinstance(value, str | os.PathLike) and os.fspath(value).startswith(folder)
    }
    for name, value in held.items():
        setattr(callback, name, f"{copy}{os.fspath(value)[len(folder) :]}")
    try:
        yield
    finally:
        vars(callback).update(held)
