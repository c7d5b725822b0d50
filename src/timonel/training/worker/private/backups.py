"""The Kerases' own ``BackupAndRestore`` beside ours: it goes on saving, and gives nothing back.

Its copy and our checkpoint are of different steps where a process was killed between the two. Its
weights would be overwritten by ours while its number of epochs stood, so that an epoch would never
be trained; and a copy that the kill broke off would be an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


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
