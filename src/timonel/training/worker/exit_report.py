"""Classify a task's outcome and report it to the engine."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.engines.base import EXIT_DONE, EXIT_RETRYABLE, FailureCause
from timonel.errors import SpecError, TimonelError
from timonel.storage import write_text
from timonel.training.worker.termination import Terminated
from timonel.training.worker.tracebacks import chain, summary, user_traceback

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
    "A training loop of your own must run its step with context().strategy.run(step, args=batch) "
    "and take its batches from strategy.experimental_distribute_dataset(data), without which all "
    "workers compute the same ones: see "
    "https://www.tensorflow.org/tutorials/distribute/custom_training, or train with model.fit."
)
_OWN_SERVED_LOOP = (
    "With --ps, a training loop of your own must call strategy.run(step, args=batch) in a "
    "tf.function that it sends to a worker with context().coordinator.schedule(train_step, "
    "args=batch): see https://www.tensorflow.org/tutorials/distribute/parameter_server_training, "
    "or train with model.fit."
)
# TensorFlow loses values of a step whose first call creates variables on several devices.
_LATE_VARIABLES = ("You must feed a value for placeholder tensor", "fn_with_cond")
_BUILD_FIRST = (
    "TensorFlow cannot create the variables of a model or an optimizer in a step that runs on "
    "several devices. Before the loop, call model.build(input_shape) and "
    "optimizer.build(model.trainable_variables) in strategy.scope()."
)
_OUT_OF_MEMORY_ERRORS = frozenset({"MemoryError", "ResourceExhaustedError"})


@dataclass(frozen=True)
class Outcome:
    """How a task ends.

    Attributes:
        exit_code: The process's exit code.
        cause: Cause of the failure, if any.
        message: One-line description.
        traceback: Traceback for the user; None if it would not help.
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
    """Return the outcome of a task that raised ``error``.

    Args:
        error: Raised by the user's program or by the code around it.
        script: The path of the user's program.
        peers: Number of other tasks that train.
        terminating: SIGTERM was received, so that any later error counts as its consequence.
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
        message = "; ".join([_of_memory(error), *said])
        return Outcome(EXIT_FAILED, FailureCause.OUT_OF_MEMORY, message, text)
    return Outcome(EXIT_FAILED, FailureCause.USER_ERROR, summary(error), text)


def explained(
    error: BaseException, faults: Sequence[TimonelError], *, is_served: bool = False
) -> BaseException:
    """Return the timonel error behind a TensorFlow error, else the error.

    Args:
        error: Raised by the user's program.
        faults: Errors raised inside TensorFlow operations, which forward only their text.
        is_served: The job has parameter servers.
    """
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


def write_report(task_dir: Path, outcome: Outcome) -> None:
    """Report a failure's cause to the engine.

    A full disk is ignored, as the exit code still tells of the failure.
    """
    if outcome.cause is not None:
        report = {
            "cause": outcome.cause.value,
            "message": outcome.message,
            "traceback": outcome.traceback,
        }
        with contextlib.suppress(TimonelError):
            write_text(task_dir / "report.json", json.dumps(report) + "\n")


def _of_exit(error: SystemExit) -> Outcome:
    if error.code is None or error.code == 0:
        return DONE
    if isinstance(error.code, int):
        message = f"the script ended with exit code {error.code}"
        return Outcome(error.code & 0xFF or EXIT_FAILED, FailureCause.USER_ERROR, message)
    return Outcome(EXIT_FAILED, FailureCause.USER_ERROR, str(error.code), f"{error.code}\n")


def _is_out_of_memory(error: BaseException) -> bool:
    # TensorFlow raises the same error if memory or disk space is exhausted.
    is_disk = os.strerror(errno.ENOSPC) in str(error)
    return bool(_names(type(error)) & _OUT_OF_MEMORY_ERRORS) and not is_disk


def _of_memory(error: BaseException) -> str:
    """Return the line about the failed allocation.

    TensorFlow puts it below a generic first line.
    """
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
