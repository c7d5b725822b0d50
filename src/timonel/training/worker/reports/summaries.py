"""TensorBoard event files that a script writes: their folders are recorded, their values kept.

TensorFlow keeps up to ten values in memory, and a forked task ends without the destructors that
would write them. So each value is written at once, unless the script chose otherwise, and the rest
at the end of the script. The files of a run's chief have the run's ID in their names: parallel jobs
may write to the same folder.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from timonel.tracking import RunWriter
from timonel.tracking.events import SUMMARIES
from timonel.training.worker.private.attributes import replaced


@contextlib.contextmanager
def recorded_summaries(run: RunWriter | None) -> Iterator[None]:
    """Record the folders of event files, and write all values at the end of the block.

    Does nothing in a process that has not imported TensorFlow. Only the chief has a ``run``.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None:
        yield
        return
    writers = _Writers(run)
    v1, original = tf.compat.v1.summary.FileWriter, tf.summary.create_file_writer
    create = writers.noted(original, suffix=".v2", flush_millis=0)
    create_v1 = writers.noted(v1.__init__, suffix="", flush_secs=0)
    with contextlib.ExitStack() as stack:
        for module in (tf.summary, tf.compat.v2.summary):
            stack.enter_context(replaced(module, create_file_writer=create))
        # `import tensorflow.summary` makes another module, from where the function is defined.
        home = sys.modules[original.__module__]
        stack.enter_context(replaced(home, **{original.__name__: create}))
        stack.enter_context(replaced(v1, __init__=create_v1))
        try:
            yield
        finally:
            writers.flush()


class _Writers:
    """Writers of event files that this process has created."""

    def __init__(self, run: RunWriter | None) -> None:
        self._run = run
        self._folders: set[str] = set()
        self._writers: weakref.WeakSet[Any] = weakref.WeakSet()
        # A thread writes the values of TensorFlow 1's writers, also after the script drops them.
        self._v1_writers: list[Any] = []

    def noted(self, original: Callable[..., Any], *, suffix: str, **flush: int) -> Any:
        """Return a function or ``__init__`` that also notes the writer it creates.

        ``suffix`` is the default of a file's name, ``flush`` the option that writes each value at
        once.
        """
        signature = inspect.signature(original)

        @functools.wraps(original)
        def create(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            for name, value in flush.items():
                given.setdefault(name, value)
            if self._run is not None:
                end = given.get("filename_suffix")
                # A tensor in a graph has no value yet.
                if end is None or isinstance(end, str):
                    given["filename_suffix"] = (
                        f".{self._run.run_id}{suffix if end is None else end}"
                    )
            result = original(**given)
            self._note(given.get("self", result), given["logdir"])
            return result

        return create

    def flush(self) -> None:
        for writer in [*self._writers, *self._v1_writers]:
            with contextlib.suppress(Exception):  # closed, or its session is
                writer.flush()

    def _note(self, writer: Any, folder: Any) -> None:
        if (queue := getattr(writer, "event_writer", None)) is not None:
            self._v1_writers.append(queue)  # FileWriter.flush warns of closed files
        else:
            self._writers.add(writer)
        with contextlib.suppress(AttributeError):  # a tensor
            folder = folder.numpy()
        if self._run is None or not isinstance(folder, str | bytes | os.PathLike):
            return
        text = os.fsdecode(folder)
        place = text if "://" in text else os.path.abspath(text)  # noqa: PTH100 - keep links
        if place not in self._folders:
            self._folders.add(place)
            self._run.event(SUMMARIES, folder=place)
