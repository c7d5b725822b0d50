"""How a task ends: what went wrong, whose fault it was, and what the engine is told of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from timonel.engines.base import EXIT_DONE, EXIT_RETRYABLE, FailureCause
from timonel.errors import TimonelError
from timonel.storage import write_text

EXIT_FAILED = 1

# What TensorFlow raises when a peer is gone, whatever it was doing.
_LOST_PEER_ERRORS = frozenset({"UnavailableError", "AbortedError"})
# What it raises for that and for other reasons: the text decides.
_AMBIGUOUS_ERRORS = frozenset(
    {
        "CancelledError",
        "DeadlineExceededError",
        "FailedPreconditionError",
        "InternalError",
        "UnknownError",
    }
)
_LOST_PEER_WORDS = (
    "collective",
    "coordination service",
    "heartbeat",
    "incarnation",
    "connection reset",
    "socket closed",
    "remote worker",
    "barrier",
)
_WAY_IN = str(Path(__file__).parent / "task" / "script.py")
_OUT_OF_MEMORY_ERRORS = frozenset({"MemoryError", "ResourceExhaustedError"})


PATIENCE_S = 15.0
"""How long a step may take at whose end the state is saved before a task leaves."""


class Terminated(BaseException):
    """SIGTERM came: the process is to leave at the next place where it can."""


@dataclass(frozen=True)
class Outcome:
    """How a task ends.

    Attributes:
        exit_code: The process's exit code.
        cause: Why it failed, if it did and the engine should know.
        message: One line about it.
        traceback: What the user should see of it; None where nothing helps.
    """

    exit_code: int
    cause: FailureCause | None = None
    message: str = ""
    traceback: str | None = None


DONE = Outcome(EXIT_DONE)
LEFT = Outcome(EXIT_RETRYABLE, FailureCause.PREEMPTED, "asked to leave")


def of_exception(
    error: BaseException, *, script: str, peers: int, terminating: bool = False
) -> Outcome:
    """Return how a task ends that ``error`` went through.

    Args:
        error: What came out of the user's program or of what surrounds it.
        script: The path of the user's program.
        peers: How many other tasks train.
        terminating: SIGTERM has come; whatever is raised after it is its consequence.
    """
    if terminating or isinstance(error, Terminated):
        return LEFT
    if isinstance(error, SystemExit):
        return _of_exit(error)
    if peers and any(_is_lost_peer(found) for found in chain(error)):
        return Outcome(EXIT_RETRYABLE, FailureCause.LOST_PEER, summary(error))
    text = user_traceback(error, script)
    if any(_is_out_of_memory(found) for found in chain(error)):
        said = [note for found in chain(error) for note in getattr(found, "__notes__", ())]
        message = "; ".join([summary(error), *said])
        return Outcome(EXIT_FAILED, FailureCause.OUT_OF_MEMORY, message, text)
    return Outcome(EXIT_FAILED, FailureCause.USER_ERROR, summary(error), text)


def explained(error: BaseException, faults: Sequence[TimonelError]) -> BaseException:
    """Return the error of ours that TensorFlow has passed on as text, if it was one.

    Args:
        error: What came out of the user's program.
        faults: What was raised inside TensorFlow's operations.
    """
    texts = [str(found) for found in chain(error) if _is_tensorflows(type(found))]
    for fault in faults:
        if any(fault.message in text for text in texts):
            fault.__cause__ = fault.__context__ = None
            return fault.with_traceback(error.__traceback__)
    return error


def user_traceback(error: BaseException, script: str) -> str:
    """Return the traceback as if the user had run the script: without the frames around it.

    An error that never went through the script keeps all its frames, unless it explains itself.
    One that arose in what surrounds the script, such as a full disk, explains itself as well.
    """
    if isinstance(error, TimonelError) and not _arose_in(error, script):
        return f"{type(error).__name__}: {error}\n"
    if not _concerns(error, script):
        return "".join(traceback.format_exception(error))
    shown = traceback.TracebackException.from_exception(error)
    for part in _parts(shown):
        part.stack = traceback.StackSummary.from_list(_own_frames(part, script))
    return "".join(shown.format())


def summary(error: BaseException) -> str:
    """Return the last line of a traceback: the kind of error and the first line of its text."""
    if isinstance(error, TimonelError):
        return str(error)[:500]
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.splitlines()[-1 if isinstance(error, SyntaxError) else 0][:500]


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then what it came from, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def write_report(task_dir: Path, outcome: Outcome) -> None:
    """Tell the engine why the task failed, if there is space for it: the exit code says it too."""
    if outcome.cause is not None:
        report = {
            "cause": outcome.cause.value,
            "message": outcome.message,
            "traceback": outcome.traceback,
        }
        with contextlib.suppress(TimonelError):
            write_text(task_dir / "report.json", json.dumps(report) + "\n")


class Termination:
    """Leaves when SIGTERM comes, and knows that it has come.

    Python calls a handler between two bytecodes: a step that is being computed is finished first.
    """

    def __init__(self) -> None:
        self.requested = False
        self._ask: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None

    def install(self) -> None:
        """Handle SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._handle)

    def ignore_more(self) -> None:
        """Let nothing disturb the end that has begun."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    @contextlib.contextmanager
    def deferred(self, ask: Callable[[], None]) -> Iterator[None]:
        """Let the first SIGTERM in this block only call ``ask``: somebody leaves in good order.

        Who has not left after `PATIENCE_S`, or is asked a second time, leaves as anywhere else.
        Whoever has been asked does not get out of the block.

        Args:
            ask: Called from the signal handler.
        """
        self._ask = ask
        try:
            yield
            if self.requested:
                raise Terminated
        finally:
            self._ask = None
            if self._timer is not None:
                self._timer.cancel()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        ask, self._ask = self._ask, None
        first, self.requested = not self.requested, True
        if ask is not None and first:
            ask()
            self._timer = threading.Timer(PATIENCE_S, os.kill, (os.getpid(), signal.SIGTERM))
            self._timer.daemon = True
            self._timer.start()
            return
        self.ignore_more()
        raise Terminated


def _of_exit(error: SystemExit) -> Outcome:
    if error.code is None or error.code == 0:
        return DONE
    if isinstance(error.code, int):
        message = f"the script ended with exit code {error.code}"
        return Outcome(error.code & 0xFF or EXIT_FAILED, FailureCause.USER_ERROR, message)
    return Outcome(EXIT_FAILED, FailureCause.USER_ERROR, str(error.code), f"{error.code}\n")


def _is_out_of_memory(error: BaseException) -> bool:
    # TensorFlow has one error for a lack of memory and of space on the disk.
    is_disk = os.strerror(errno.ENOSPC) in str(error)
    return bool(_names(type(error)) & _OUT_OF_MEMORY_ERRORS) and not is_disk


def _is_lost_peer(error: BaseException) -> bool:
    names = _names(type(error))
    if not _is_tensorflows(type(error)):
        return False
    if names & _LOST_PEER_ERRORS:
        return True
    text = str(error).lower()
    return bool(names & _AMBIGUOUS_ERRORS) and any(word in text for word in _LOST_PEER_WORDS)


def _names(kind: type) -> set[str]:
    return {base.__name__ for base in kind.__mro__}


def _is_tensorflows(kind: type) -> bool:
    return any(base.__module__.startswith("tensorflow.") for base in kind.__mro__)


def _parts(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield shown
    for linked in (shown.__cause__, shown.__context__):
        if linked is not None:
            yield from _parts(linked)


def _concerns(error: BaseException, script: str) -> bool:
    """Tell whether an error came out of the script, or is one in its syntax."""
    if isinstance(error, SyntaxError) and _is_of(str(error.filename), script):
        return True
    return any(
        _first_of_the_user(traceback.extract_tb(found.__traceback__), script) is not None
        for found in chain(error)
    )


def _arose_in(error: BaseException, script: str) -> bool:
    """Tell whether the script's own call raised an error, and not the worker's code below it."""
    worker = str(Path(__file__).parent) + os.sep
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_of(frame.filename, script):
            return True
        if frame.filename.startswith(worker):
            return False
    return False


def _own_frames(part: traceback.TracebackException, script: str) -> list[traceback.FrameSummary]:
    """Return the frames from the script's first one on, but for ours in between."""
    frames = list(part.stack)
    first = _first_of_the_user(frames, script)
    if first is None and issubclass(part.exc_type, SyntaxError):
        return []
    return [frame for frame in frames[first or 0 :] if not _is_ours(frame.filename)]


def _first_of_the_user(frames: Sequence[traceback.FrameSummary], script: str) -> int | None:
    """Return the place of the first frame of the script, or of what is imported to run it."""
    for number, frame in enumerate(frames):
        if _is_of(frame.filename, script):
            return number
    # A module's package may fail before its own first line.
    way_in = max((n for n, frame in enumerate(frames) if frame.filename == _WAY_IN), default=None)
    for number, frame in enumerate(frames):
        if way_in is not None and number > way_in and not _is_pythons(frame.filename):
            return number
    return None


def _is_of(filename: str, script: str) -> bool:
    """Tell whether a file name is the script's, or that of a notebook's cell."""
    return filename == script or filename.startswith(f"{script}, cell ")


def _is_ours(filename: str) -> bool:
    package = str(Path(__file__).resolve().parents[2])
    return filename.startswith((package + os.sep, "<frozen runpy>", "<frozen importlib."))


def _is_pythons(filename: str) -> bool:
    return filename.startswith((str(Path(os.__file__).parent) + os.sep, "<frozen "))
