"""Loading each version in a thread of its own, so that its memory lies apart from that of others.

An allocator takes what a thread asks for from an arena of that thread's. Where two versions lie in
one arena, each fills the gaps that the other has left, and the pages of what is unloaded are kept
by what is not: up to as much again as a version takes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from timonel.serving.runtimes.base import LoadedModel

Load = Callable[[Path], LoadedModel]


def in_own_thread(load: Load) -> Load:
    """Return a ``load`` that loads each version in a thread which lasts as long as the version.

    The arena of a thread that has ended goes to the next one, so it waits until its version is
    gone. The next version is loaded before that, and gets another arena.

    Args:
        load: Loads the version in a folder.
    """

    def loading(path: Path) -> LoadedModel:
        # Queues: whatever else hands a version over keeps a reference to it, and so its thread.
        found: SimpleQueue[LoadedModel | BaseException] = SimpleQueue()
        gone: SimpleQueue[None] = SimpleQueue()
        threading.Thread(
            target=_live, args=(load, path, found, gone), name="version", daemon=True
        ).start()
        loaded = found.get()
        if isinstance(loaded, BaseException):
            raise loaded
        weakref.finalize(loaded, gone.put, None)
        return loaded

    return loading


def _live(
    load: Load,
    path: Path,
    found: SimpleQueue[LoadedModel | BaseException],
    gone: SimpleQueue[None],
) -> None:
    try:
        found.put(load(path))
    except BaseException as error:  # noqa: BLE001 - raised where the version is waited for
        found.put(error)
        return
    gone.get()
