"""Detection of runs too short to hand to another thread. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from timonel.serving.signature import STRING, Array, Signature

_FORGIVEN_IN = 1000
_WAITS = 10
"""Upper bound on the ratio of elapsed time to compute time that is attributed to waiting."""


class OverrunCounter:
    """Detects that runs repeatedly use far more processor time than expected.

    Single overruns are tolerated: a run may have built caches for the next ones, or have triggered
    the garbage collector.

    Args:
        limit_s: The processor time of a run that counts as an overrun.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._count = 0

    def are_too_many(self, cpu_s: float) -> bool:
        """Count a run; return whether it was the third recent overrun.

        Recent means within about a thousand runs.
        """
        if cpu_s > self._limit_s:
            self._count += _FORGIVEN_IN
        elif self._count:
            self._count -= 1
        return self._count > 2 * _FORGIVEN_IN


class InlineThreshold:
    """Input sizes for which runs take less than a time limit.

    One fast run proves that a size is quick. A slow run changes nothing: the machine may have been
    busy. Not locked: losing one of two concurrent observations does not matter.

    Args:
        limit_s: The limit, in seconds.
        slips: Counts overruns; after too many of them no size is quick any more. None if overruns
            hold up no other request.
    """

    def __init__(self, limit_s: float, slips: OverrunCounter | None = None) -> None:
        self._limit_s = limit_s
        self._slips = slips
        self._largest = -1

    def covers(self, size: int) -> bool:
        """Return whether runs with ``size`` input bytes are known as quick."""
        return size <= self._largest

    def observe(self, size: int, seconds: float, cpu_s: float = 0.0) -> None:
        """Record a run.

        Args:
            size: The bytes of its input.
            seconds: The elapsed time.
            cpu_s: The thread's processor time, without waiting for the processor.
        """
        if self._slips is not None and self._slips.are_too_many(cpu_s):
            self._limit_s, self._largest = -1.0, -1
        elif seconds < self._limit_s and size > self._largest:
            self._largest = size


def spent(seconds: float, cpu_s: float) -> float:
    """Estimate a run's time with the processor and the interpreter to itself.

    A thread that returns from computing waits for the thread that runs Python, and on a busy
    machine for the processor. But not all elapsed time is waiting: other threads may compute for
    the run, too.

    Args:
        seconds: The elapsed time.
        cpu_s: The thread's processor time.
    """
    return max(cpu_s, seconds / _WAITS)


def size_of(inputs: Mapping[str, Array]) -> int:
    """Return the bytes of a run's inputs; strings count as references."""
    return sum([array.nbytes for array in inputs.values()])


def is_even(signature: Signature) -> bool:
    """Return whether, judging by the shapes, every row takes equal work."""
    return all(
        spec.dtype != STRING and spec.shape is not None and -1 not in spec.shape[1:]
        for spec in signature.inputs.values()
    )
