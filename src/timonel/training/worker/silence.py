"""Tell what a program waits for when it makes no step for minutes."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from timonel.training.worker.script_files import line_of_script

_FIRST_S, _AGAIN_S = 120.0, 1200.0
_CHECK_S = 5.0


class Silence:
    """Notes when the number of completed steps last changed. Time is monotonic seconds."""

    def __init__(self, began: float) -> None:
        self._changed = began
        self._steps: str | None = None
        self._told = 0.0

    def is_to_be_told(self, now: float, steps: str | None) -> float | None:
        """Return for how many seconds no step was made, if that is to be told now."""
        if steps != self._steps:
            self._steps, self._changed, self._told = steps, now, 0.0
        silent = now - self._changed
        if silent < (_FIRST_S if not self._told else self._told + _AGAIN_S):
            return None
        self._told = silent
        return silent


def watch(progress: Path, tell: Callable[[str], object]) -> None:
    """Watch the main thread and its file of completed steps from now on, in a daemon thread."""
    arguments = (progress, tell, threading.main_thread().ident)
    threading.Thread(target=_watch, args=arguments, name="timonel-silence", daemon=True).start()


def frame_of(thread: int | None) -> FrameType | None:
    """Return the innermost frame of a thread; None if it does not run Python code."""
    # Python holds a lock of its threads while it makes this dict. A garbage collection that begins
    # meanwhile may end a thread's state, which waits for the same lock for ever (gh-106883).
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread or 0)
    finally:
        if was_enabled:
            gc.enable()


def place_of(frame: FrameType | None) -> str:
    """Return where a thread is: the line of the script, and what it has called."""
    found = None if frame is None else line_of_script(frame)
    if frame is None or found is None:
        return "the program has not begun"
    own, file, line = found
    if own is frame:
        return f"{file}, line {line}"
    module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    whose = "TensorFlow" if module == "tensorflow" else module
    return f"{file}, line {line}, waits for {whose} ({frame.f_code.co_name})"


def _watch(progress: Path, tell: Callable[[str], object], thread: int) -> None:
    silence = Silence(time.monotonic())
    while True:
        time.sleep(_CHECK_S)
        try:
            steps = progress.read_text() if progress.exists() else None
        except OSError:
            continue  # the file system is temporarily unavailable
        silent = silence.is_to_be_told(time.monotonic(), steps)
        if silent is not None:
            place = place_of(frame_of(thread))
            tell(f"no step for {silent / 60:.0f} minutes: {place}")
