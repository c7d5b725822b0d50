"""Redirect TensorFlow's ``checkpoint`` lists and the deletion of old checkpoints.

``tf.train.Checkpoint.save`` rewrites the list in its folder; ``tf.train.CheckpointManager`` also
deletes the checkpoints beyond ``max_to_keep``. Both open those files themselves.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

Place = Callable[[Any], Any]
"""Maps a path to the path to use instead."""


def missing_names() -> list[str]:
    """Return the required names of TensorFlow that are missing."""
    wanted = (
        "update_checkpoint_state_internal",
        "_GetCheckpointFilename",
        "_prefix_to_checkpoint_path",
        "_delete_file_if_exists",
    )
    return [name for name in wanted if not hasattr(_management(), name)]


@contextlib.contextmanager
def redirected(for_writing: Place, for_reading: Place) -> Iterator[None]:
    """Write lists and delete checkpoints at other paths, within the block.

    Lists contain the script's own paths, so ``tf.train.latest_checkpoint`` returns one of those.

    Args:
        for_writing: Maps the path of a list to write, or of a file to delete.
        for_reading: Maps the path of a list or checkpoint to read.
    """
    management = _management()
    update = management.update_checkpoint_state_internal
    list_of = management._GetCheckpointFilename
    index_of = management._prefix_to_checkpoint_path
    delete = management._delete_file_if_exists

    @functools.wraps(update)
    def updated(save_dir: Any, *args: Any, latest_filename: Any = None, **kwargs: Any) -> None:
        # TensorFlow joins folder and name; an absolute name stays as it is.
        place = for_writing(list_of(save_dir, latest_filename))
        update(save_dir, *args, latest_filename=place, **kwargs)

    replaced = {
        update.__name__: updated,
        list_of.__name__: lambda *args: for_reading(list_of(*args)),
        index_of.__name__: lambda prefix, version: index_of(for_reading(prefix), version),
        delete.__name__: lambda files: delete(for_writing(files)),
    }
    before = {name: getattr(management, name) for name in replaced}
    vars(management).update(replaced)
    try:
        yield
    finally:
        vars(management).update(before)


def _management() -> Any:
    from tensorflow.python.checkpoint import (  # noqa: PLC0415 - TensorFlow loads here
        checkpoint_management,
    )

    return checkpoint_management
