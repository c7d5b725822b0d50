"""Tracebacks as the user would see them without a job."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from timonel.errors import TimonelError

_WAY_IN = str(Path(__file__).parent / "task" / "script.py")


def user_traceback(error: BaseException, script: str) -> str:
    """Return the traceback without the frames around the user's script.

    A `TimonelError` that the script did not raise itself, such as on a full disk, is shown without
    frames. Any other error that did not pass through the script keeps all its frames.
    """
    if isinstance(error, TimonelError) and not _arose_in(error, script):
        return f"{error}\n"
    if not _concerns(error, script):
        return "".join(traceback.format_exception(error))
    shown = traceback.TracebackException.from_exception(error)
    for part in _parts(shown):
        part.stack = traceback.StackSummary.from_list(_own_frames(part, script))
    return "".join(shown.format())


def summary(error: BaseException) -> str:
    """Return an error's type and the first line of its text."""
    if isinstance(error, TimonelError):
        return str(error)[:500]
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.splitlines()[-1 if isinstance(error, SyntaxError) else 0][:500]


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _parts(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield shown
    for linked in (shown.__cause__, shown.__context__):
        if linked is not None:
            yield from _parts(linked)


def _concerns(error: BaseException, script: str) -> bool:
    """Tell whether an error came from the script or its syntax."""
    if isinstance(error, SyntaxError) and _is_of(str(error.filename), script):
        return True
    return any(
        _first_of_the_user(traceback.extract_tb(found.__traceback__), script) is not None
        for found in chain(error)
    )


def _arose_in(error: BaseException, script: str) -> bool:
    """Tell whether the script raised an error, not worker code it called."""
    worker = str(Path(__file__).parent) + os.sep
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_of(frame.filename, script):
            return True
        if frame.filename.startswith(worker):
            return False
    return False


def _own_frames(part: traceback.TracebackException, script: str) -> list[traceback.FrameSummary]:
    """Return the frames from the script's first one on, without timonel's."""
    frames = list(part.stack)
    first = _first_of_the_user(frames, script)
    if first is None and issubclass(part.exc_type, SyntaxError):
        return []
    return [frame for frame in frames[first or 0 :] if not _is_ours(frame.filename)]


def _first_of_the_user(frames: Sequence[traceback.FrameSummary], script: str) -> int | None:
    """Return the index of the first frame in the user's code.

    That is the script, or a module imported to run it.
    """
    for number, frame in enumerate(frames):
        if _is_of(frame.filename, script):
            return number
    # A module's package may fail before the module's first line.
    way_in = max((n for n, frame in enumerate(frames) if frame.filename == _WAY_IN), default=None)
    for number, frame in enumerate(frames):
        if way_in is not None and number > way_in and not _is_pythons(frame.filename):
            return number
    return None


def _is_of(filename: str, script: str) -> bool:
    """Tell whether a file name is the script's, or a notebook cell's."""
    return filename == script or filename.startswith(f"{script}, cell ")


def _is_ours(filename: str) -> bool:
    package = str(Path(__file__).resolve().parents[2])
    return filename.startswith((package + os.sep, "<frozen runpy>", "<frozen importlib."))


def _is_pythons(filename: str) -> bool:
    return filename.startswith((str(Path(os.__file__).parent) + os.sep, "<frozen "))
