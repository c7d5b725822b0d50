"""Classify a task's outcome and report it to the engine, with the user's traceback."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.engines.base import EXIT_DONE, EXIT_RETRYABLE, FailureCause
from timonel.errors import SpecError, TimonelError
from timonel.storage import write_text
from timonel.training.worker import program
from timonel.training.worker.termination import Terminated

EXIT_FAILED = 1

# Errors that TensorFlow raises in any operation when a peer is gone.
_LOST_PEER_ERRORS = frozenset({"UnavailableError", "AbortedError"})
# Errors with several possible reasons: the text decides.
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
# Errors of a step in the user's loop that runs outside `Strategy.run`.
_OUTSIDE_REPLICAS = (
    "DistributedVariable.handle is not available outside the replica context",
    "'NoneType' object has no attribute 'merge_call'",
)
_OWN_LOOP = (
    "A custom training loop must run its step with context().strategy.run(step, args=batch) and "
    "take its batches from strategy.experimental_distribute_dataset(data); otherwise all workers "
    "compute the same batches. See "
    "https://www.tensorflow.org/tutorials/distribute/custom_training, or train with model.fit."
)
_OWN_SERVED_LOOP = (
    "With --ps, a custom training loop must call strategy.run(step, args=batch) in a tf.function "
    "that it sends to a worker with context().coordinator.schedule(train_step, args=batch). See "
    "https://www.tensorflow.org/tutorials/distribute/parameter_server_training, or train with "
    "model.fit."
)
# TensorFlow loses values of a step whose first call creates variables on several devices.
_LATE_VARIABLES = ("You must feed a value for placeholder tensor", "fn_with_cond")
_BUILD_FIRST = (
    "TensorFlow cannot create the variables of a model or an optimizer in a step that runs on "
    "several devices. Before the loop, call model.build(input_shape) and "
    "optimizer.build(model.trainable_variables) in strategy.scope()."
)
# Errors of Keras 3 in scripts that were written for Keras 2.
_KERAS_2 = "set TF_USE_LEGACY_KERAS=1 to train with Keras 2 (pip install tf-keras)"
_CURES = {
    "Invalid filepath extension for saving": "save with a suffix, as in "
    f"model.save('model.keras'), or {_KERAS_2}",
    "Argument(s) not recognized: {'lr'": f"name it learning_rate=, or {_KERAS_2}",
}
_OUT_OF_MEMORY_ERRORS = frozenset({"MemoryError", "ResourceExhaustedError"})


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ends."""

    exit_code: int
    cause: FailureCause | None = None
    message: str = ""  # one line
    traceback: str | None = None  # for the user; None if it would not help


DONE = TaskOutcome(EXIT_DONE)
LEFT = TaskOutcome(EXIT_RETRYABLE, FailureCause.PREEMPTED, "stopped by SIGTERM")


def of_exception(
    error: BaseException, *, script: str, peers: int, terminating: bool = False
) -> TaskOutcome:
    """Return the outcome of a task that raised ``error``.

    ``peers`` is the number of other tasks that train. ``terminating``: SIGTERM was received, so
    that any later error counts as its consequence.
    """
    if terminating or isinstance(error, Terminated):
        return LEFT
    if isinstance(error, SystemExit):
        return _of_exit(error)
    if peers and any(_is_lost_peer(found) for found in chain(error)):
        return TaskOutcome(EXIT_RETRYABLE, FailureCause.LOST_PEER, summary(error))
    text = user_traceback(error, script)
    if any(is_out_of_memory(found) for found in chain(error)):
        notes = [note for found in chain(error) for note in getattr(found, "__notes__", ())]
        message = "; ".join([_memory_message(error), *notes])
        return TaskOutcome(EXIT_FAILED, FailureCause.OUT_OF_MEMORY, message, text)
    cure = next((cure for words, cure in _CURES.items() if words in str(error)), None)
    if cure is not None:
        message = f"{summary(error)[:300]}: {cure}"
        return TaskOutcome(EXIT_FAILED, FailureCause.USER_ERROR, message, f"{text}\n{cure}\n")
    return TaskOutcome(EXIT_FAILED, FailureCause.USER_ERROR, summary(error), text)


def explained(
    error: BaseException, faults: Sequence[TimonelError], *, is_served: bool = False
) -> BaseException:
    """Return the timonel error behind a TensorFlow error, else the error."""
    # ``faults`` were raised inside TensorFlow operations, which forward only their text.
    if any(words in str(error) for words in _OUTSIDE_REPLICAS):
        return SpecError(_OWN_SERVED_LOOP if is_served else _OWN_LOOP)
    if all(words in str(error) for words in _LATE_VARIABLES):
        return SpecError(_BUILD_FIRST)
    texts = [str(found) for found in chain(error) if _is_tensorflows(type(found))]
    for fault in faults:
        if any(fault.message in text for text in texts):
            fault.__cause__ = fault.__context__ = None
            return fault.with_traceback(error.__traceback__)
    return error


def write_report(task_dir: Path, outcome: TaskOutcome) -> None:
    """Report a failure's cause to the engine, unless the disk is full: the exit code tells, too."""
    if outcome.cause is not None:
        report = {
            "cause": outcome.cause.value,
            "message": outcome.message,
            "traceback": outcome.traceback,
        }
        with contextlib.suppress(TimonelError):
            write_text(task_dir / "report.json", json.dumps(report) + "\n")


def _of_exit(error: SystemExit) -> TaskOutcome:
    if error.code is None or error.code == 0:
        return DONE
    if isinstance(error.code, int):
        message = f"the script ended with exit code {error.code}"
        return TaskOutcome(error.code & 0xFF or EXIT_FAILED, FailureCause.USER_ERROR, message)
    return TaskOutcome(EXIT_FAILED, FailureCause.USER_ERROR, str(error.code), f"{error.code}\n")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or TensorFlow could not allocate memory."""
    # TensorFlow raises the same error if memory or disk space is exhausted.
    is_disk = os.strerror(errno.ENOSPC) in str(error)
    return bool(_names(type(error)) & _OUT_OF_MEMORY_ERRORS) and not is_disk


def _memory_message(error: BaseException) -> str:
    """Return the line about the failed allocation, which is below a generic first line."""
    for line in str(error).splitlines():
        before, found, after = line.partition("OOM when allocating")
        if found and not before.strip():
            return f"{type(error).__name__}: {found}{after}"[:500]
    return summary(error)


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


_SCRIPT_RUNNER = program.__file__
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_TIMONELS = (_PACKAGE, "<frozen runpy>", "<frozen importlib.")
_PYTHONS = (str(Path(os.__file__).parent) + os.sep, "<frozen ")


def user_traceback(error: BaseException, script: str) -> str:
    """Return the traceback without the frames around the user's script."""
    # A `TimonelError` that the script did not raise itself, such as on a full disk, is shown
    # without frames. Any other error that did not pass through the script keeps all its frames.
    if isinstance(error, TimonelError) and not _was_raised_by(error, script):
        return f"{error}\n"
    if not _involves_script(error, script):
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


def _involves_script(error: BaseException, script: str) -> bool:
    """Tell whether an error came from the script or its syntax."""
    if isinstance(error, SyntaxError) and _is_script(str(error.filename), script):
        return True
    return any(
        _first_user_frame(traceback.extract_tb(found.__traceback__), script) is not None
        for found in chain(error)
    )


def _was_raised_by(error: BaseException, script: str) -> bool:
    """Tell whether the script raised an error, not worker code it called."""
    worker = str(Path(__file__).parent) + os.sep
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_script(frame.filename, script):
            return True
        if frame.filename.startswith(worker):
            return False
    return False


def _own_frames(part: traceback.TracebackException, script: str) -> list[traceback.FrameSummary]:
    """Return the frames from the script's first one on, without timonel's."""
    frames = list(part.stack)
    first = _first_user_frame(frames, script)
    if first is None and hasattr(part, "lineno"):  # set for syntax errors only
        return []
    return [frame for frame in frames[first or 0 :] if not frame.filename.startswith(_TIMONELS)]


def _first_user_frame(frames: Sequence[traceback.FrameSummary], script: str) -> int | None:
    """Return the index of the first frame in the script, or in a module imported to run it."""
    for number, frame in enumerate(frames):
        if _is_script(frame.filename, script):
            return number
    # A module's package may fail before the module's first line.
    entered = max(
        (
            number
            for number, frame in enumerate(frames)
            # That package may have parsed arguments, through the runner's wrapper.
            if frame.filename == _SCRIPT_RUNNER and frame.name != "parse_known_args"
        ),
        default=None,
    )
    for number, frame in enumerate(frames):
        if entered is not None and number > entered and not frame.filename.startswith(_PYTHONS):
            return number
    return None


def _is_script(filename: str, script: str) -> bool:
    """Tell whether a file name is the script's, or a notebook cell's."""
    return filename == script or filename.startswith(f"{script}, cell ")
