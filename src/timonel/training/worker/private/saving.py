"""Redirect saved files that Keras and TensorFlow open themselves.

- ``BackupAndRestore`` of both Kerases keeps saving, but restores nothing when a job resumes. If a
  process was killed between the two, its backup and our checkpoint are of different steps. Ours
  would overwrite its weights but not its epoch count, so that an epoch would never be trained; and
  an incomplete backup would be an error.
- ``tf.train.Checkpoint.save`` rewrites the ``checkpoint`` list in its folder;
  ``tf.train.CheckpointManager`` also deletes the checkpoints beyond ``max_to_keep``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint, checkpoint_management

from timonel.training.worker.private.attributes import replaced


def checkpoint_saver() -> Any:
    """Return the class whose ``save`` writes every TensorFlow checkpoint."""
    # ``tf.train.Checkpoint`` and CheckpointManager record the path that they passed to it.
    return checkpoint.TrackableSaver


def backups_not_restored(keras: Any) -> contextlib.AbstractContextManager[None]:
    """Make ``BackupAndRestore`` of this Keras start without a backup, within the block."""
    if keras.__name__ == "keras":
        return replaced(keras.callbacks.BackupAndRestore, _load_model=lambda _: None)
    from tf_keras.src.distribute import worker_training_state  # noqa: PLC0415 - Keras loads here

    return replaced(worker_training_state.WorkerTrainingState, restore=lambda _: None)


@contextlib.contextmanager
def moved_backup(callback: Any, place: Callable[[Any], Any]) -> Iterator[None]:
    """Redirect Keras 3's ``BackupAndRestore`` to a copy of its folder, within the block."""
    folder = os.fspath(callback.backup_dir).rstrip("/")
    copy = place(folder)
    # A backup of an earlier job: all tasks must start at the same epoch.
    for parent, _, names in tf.io.gfile.walk(folder):
        target = f"{copy}/{parent[len(folder) :]}"
        tf.io.gfile.makedirs(target)
        for name in names:
            tf.io.gfile.copy(f"{parent}/{name}", f"{target}/{name}", overwrite=True)
    moved = {
        name: f"{copy}{os.fspath(value)[len(folder) :]}"
        for name, value in vars(callback).items()
        if isinstance(value, str | os.PathLike) and os.fspath(value).startswith(folder)
    }
    with replaced(callback, **moved):
        yield


PathMap = Callable[[Any], Any]
"""Maps a path to the path to use instead."""


def redirected_lists(
    for_writing: PathMap, for_reading: PathMap
) -> contextlib.AbstractContextManager[None]:
    """Write lists and delete checkpoints at other paths, within the block."""
    # Lists contain the script's own paths, so ``tf.train.latest_checkpoint`` returns one of those.
    management = checkpoint_management
    update = management.update_checkpoint_state_internal
    list_of = management._GetCheckpointFilename
    index_of = management._prefix_to_checkpoint_path
    delete = management._delete_file_if_exists

    def updated(save_dir: Any, *args: Any, latest_filename: Any = None, **kwargs: Any) -> None:
        # TensorFlow joins folder and name; an absolute name stays as it is.
        place = for_writing(list_of(save_dir, latest_filename))
        update(save_dir, *args, latest_filename=place, **kwargs)

    return replaced(
        management,
        update_checkpoint_state_internal=updated,
        _GetCheckpointFilename=lambda *args: for_reading(list_of(*args)),
        _prefix_to_checkpoint_path=lambda prefix, form: index_of(for_reading(prefix), form),
        _delete_file_if_exists=lambda files: delete(for_writing(files)),
    )
