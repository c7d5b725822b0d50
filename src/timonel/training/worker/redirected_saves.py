"""Redirect files that a script saves outside the chief.

Every task runs the whole script, so several processes would write ``model.save("final.keras")`` at
once. This module follows TensorFlow's rule for MultiWorkerMirroredStrategy: every task saves, as
reading a variable may need all of them; only the chief's file is kept, and other tasks write to
private folders that are removed
(https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras). Loading a path that this
task has saved reads its own copy, as the chief may still be writing the file. TensorFlow's lists of
checkpoints are copied likewise, and old checkpoints are deleted there.

Files of ``Dataset.cache(filename)`` get another name in each task instead. TensorFlow guards such a
file by a lock file, ``<filename>_0.lockfile``, while the first pass writes it: two tasks cannot
write the same file, and the lock of a killed task makes every later one fail.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from timonel.training.cluster import Cluster
from timonel.training.worker.private import saving
from timonel.training.worker.private.attributes import replaced

logger = logging.getLogger(__name__)

_BUDGET_BYTES = 2**30
"""Size beyond which older copies are deleted: the chief finished those files long ago."""
_SCHEME = re.compile(r"^([a-z0-9]+)://", re.IGNORECASE)


class SavedCopies:
    """A task's copies of the files that its script saves. Not thread-safe. Empties its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[Path, int] = {}
        """Bytes of each copy, the oldest first."""
        self.remove()

    def remove(self) -> None:
        """Delete all copies."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def for_writing(self, path: Any) -> Any:
        """Return the path to write instead of ``path``. The parent folders of both exist."""
        copy = self._copy_of(path)
        if copy is None:
            return path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not _SCHEME.match(os.fsdecode(path)):
            # Scripts list saved files and remove their temporary folders.
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        return str(copy)

    def note_written(self, path: Any) -> None:
        """Record a written copy, and delete the oldest ones beyond the budget."""
        copy = Path(path)
        # A CheckpointManager also deletes copies.
        self._sizes = {
            each: size for each, size in self._sizes.items() if each != copy and _files_of(each)
        }
        self._sizes[copy] = sum(map(_size, _files_of(copy)))
        while len(self._sizes) > 1 and sum(self._sizes.values()) > _BUDGET_BYTES:
            oldest = next(iter(self._sizes))
            del self._sizes[oldest]
            for each in _files_of(oldest):
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    def for_reading(self, path: Any) -> Any:
        """Return this task's copy of ``path``, or ``path`` without one."""
        copy = self._copy_of(path)
        return path if copy is None or not _files_of(copy) else str(copy)

    def holds(self, path: str) -> bool:
        """Tell whether a path belongs to a copy."""
        return Path(path).is_relative_to(self._folder)

    def _copy_of(self, path: Any) -> Path | None:
        if not isinstance(path, str | os.PathLike):
            return None
        text = os.fsdecode(path)
        if not _SCHEME.match(text):
            text = os.path.abspath(text)  # noqa: PTH100 - Path.resolve would follow links
            if self.holds(text):
                return None
        return self._folder / _SCHEME.sub(r"\1/", text).lstrip("/")


class _Task:
    copies: SavedCopies | None = None  # while saves are redirected


_task = _Task()


def holds(path: Any) -> bool:
    """Tell whether a value is a path in this task's scratch folder."""
    return _task.copies is not None and isinstance(path, str) and _task.copies.holds(path)


def _for_writing(path: Any) -> Any:
    return path if _task.copies is None else _task.copies.for_writing(path)


def _for_reading(path: Any) -> Any:
    return path if _task.copies is None else _task.copies.for_reading(path)


def suspended() -> contextlib.AbstractContextManager[None]:
    """Save to the real paths within the block, for timonel's own exports."""
    return replaced(_task, copies=None)


@contextlib.contextmanager
def redirected(keras: Any, folder: Path) -> Iterator[None]:
    """Redirect saves and loads of Keras and TensorFlow within the block to a scratch folder."""
    copies = SavedCopies(folder)
    with contextlib.ExitStack() as stack:
        stack.callback(copies.remove)
        stack.enter_context(replaced(_task, copies=copies))
        for saves, places in ((True, _savers(keras)), (False, _loaders(keras))):
            for holder, name, position, keyword in places:
                own = _redirecting(getattr(holder, name), position, keyword, saves=saves)
                stack.enter_context(replaced(holder, **{name: own}))
        stack.enter_context(saving.redirected_lists(_for_writing, _for_reading))
        yield


@contextlib.contextmanager
def redirected_callbacks(keras: Any, callbacks: list[Any]) -> Iterator[None]:
    """Redirect callbacks that open files themselves, within the block."""
    with contextlib.ExitStack() as stack:
        for callback in callbacks if _task.copies is not None else ():
            stack.enter_context(_redirected_callback(keras, callback))
        yield


def _redirected_callback(keras: Any, callback: Any) -> contextlib.AbstractContextManager[None]:
    if isinstance(callback, keras.callbacks.CSVLogger):
        return replaced(callback, filename=_for_writing(callback.filename))
    if keras.__name__ == "keras":  # tf_keras' own callbacks follow TensorFlow's rule
        if isinstance(callback, keras.callbacks.TensorBoard):
            return replaced(callback, log_dir=_for_writing(callback.log_dir))
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            return saving.moved_backup(callback, _for_writing)
    return contextlib.nullcontext()


def separate_caches(cluster: Cluster) -> None:
    """Make each task's cache files unique; the chief's keep their names."""
    original = tf.data.Dataset.cache

    def cache(self: Any, filename: Any = "", name: str | None = None) -> Any:
        if isinstance(filename, str | os.PathLike) and os.fspath(filename):
            path = os.fspath(filename)
            if not cluster.is_chief:
                path = f"{path}-{cluster.task_id}"
            if cluster.generation > 1:
                _unlock(path)
            filename = path
        return original(self, filename, name=name)

    tf.data.Dataset.cache = cache


def _unlock(path: str) -> None:
    for lock in glob.glob(f"{glob.escape(path)}_*.lockfile"):  # noqa: PTH207 - a prefix, no folder
        Path(lock).unlink(missing_ok=True)
        logger.info("rewriting the cache %s, which the restart interrupted", path)


_PathParameter = tuple[Any, str, int, str]
"""Module or class, function name, and position and keyword of its path."""


def _savers(keras: Any) -> Iterator[_PathParameter]:
    for name in ("save", "save_weights", "export"):
        yield keras.Model, name, 1, "filepath"
    for module in (keras.models, keras.saving):
        for name in ("save_model", "save_weights"):
            if hasattr(module, name):
                yield module, name, 1, "filepath"
    yield tf.saved_model, "save", 1, "export_dir"
    yield saving.checkpoint_saver(), "save", 1, "file_prefix"


def _loaders(keras: Any) -> Iterator[_PathParameter]:
    yield keras.Model, "load_weights", 1, "filepath"
    for module in (keras.models, keras.saving):
        yield module, "load_model", 0, "filepath"
        if hasattr(module, "load_weights"):
            yield module, "load_weights", 1, "filepath"
    yield tf.saved_model, "load", 0, "export_dir"
    for name in ("restore", "read"):
        yield tf.train.Checkpoint, name, 1, "save_path"


def _redirecting(
    original: Callable[..., Any], position: int, keyword: str, *, saves: bool
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        copies = _task.copies
        path = args[position] if len(args) > position else kwargs.get(keyword)
        if copies is None or path is None:
            return original(*args, **kwargs)
        own = copies.for_writing(path) if saves else copies.for_reading(path)
        if len(args) > position:
            args = (*args[:position], own, *args[position + 1 :])
        else:
            kwargs = {**kwargs, keyword: own}
        result = original(*args, **kwargs)
        if not saves or own is path:
            return result
        copies.note_written(own)
        # A checkpoint's saver returns its path.
        return result if result is None else path

    return call


def _files_of(copy: Path) -> list[Path]:
    """Return the files at a path, or those of a TensorFlow checkpoint."""
    if copy.exists():
        return [copy]
    index = copy.with_name(f"{copy.name}.index")
    if not index.exists():
        return []
    return [index, *copy.parent.glob(f"{glob.escape(copy.name)}.data-*")]


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
