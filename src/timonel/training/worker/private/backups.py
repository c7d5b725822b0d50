"""Redirect model backups made by Keras and TensorFlow.

The Kerases' own ``BackupAndRestore`` keeps saving, but restores nothing when a job resumes.

If a process was killed between the two, its backup and our checkpoint are of different steps. Ours
would overwrite its weights but not its epoch count, so that an epoch would never be trained; and an
incomplete backup would be an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any


def checkpoint_saver() -> Any:
    """Return the class whose ``save`` writes every TensorFlow checkpoint.

    ``tf.train.Checkpoint`` and CheckpointManager record the path that they passed to it.
    """
    from tensorflow.python.checkpoint import checkpoint  # noqa: PLC0415 - TensorFlow loads here

    return checkpoint.TrackableSaver


@contextlib.contextmanager
def not_restored(keras: Any) -> Iterator[None]:
    """Make ``BackupAndRestore`` of this Keras start without a backup, within the block."""
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
    """Redirect Keras 3's ``BackupAndRestore`` to a copy of its folder.

    The redirection ends with the block.

    Args:
        callback: Callback to redirect.
        place: Returns the path of the copy.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    folder = os.fspath(callback.backup_dir).rstrip("/")
    copy = place(folder)
    # A backup of an earlier job: all tasks must start at the same epoch.
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
