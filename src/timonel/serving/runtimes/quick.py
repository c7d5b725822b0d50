"""Which runs take so little time that handing them to another thread costs more. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from timonel.serving.signature import STRING, Array, Signature

_FORGIVEN_IN = 1000
_WAITS = 10
"""How many times longer than it computes a run is believed to take for waiting alone."""


class OverrunCounter:
    """Whether runs use far more processor time than they should, more than now and then.

    One may have built what the next ones use, or have met the garbage collector.

    Args:
        limit_s: The processor time of a run that is far too long.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._count = 0

    def are_too_many(self, cpu_s: float) -> bool:
        """Count a run; return whether it was the third in about a thousand that was too long."""
        if cpu_s > self._limit_s:
            self._count += _FORGIVEN_IN
        elif self._count:
            self._count -= 1
        return self._count > 2 * _FORGIVEN_IN


class InlineThreshold:
    """The runs that take less than a limit: those with no more input than one that did.

    One that is fast shows what is possible; one that is slow may have met a busy machine, and
    changes nothing. Of two threads one may be forgotten: it is a statistic.

    Args:
        limit_s: The limit, in seconds.
        slips: Counts runs that were far too long, after which nothing is quick any more; none if
            nobody is held up by them.
    """

    def __init__(self, limit_s: float, slips: OverrunCounter | None = None) -> None:
        self._limit_s = limit_s
        self._slips = slips
        self._largest = -1

    def covers(self, size: int) -> bool:
        """Return whether a run with so many bytes of input is known to be quick."""
        return size <= self._largest

    def observe(self, size: int, seconds: float, cpu_s: float = 0.0) -> None:
        """Learn from a run.

        Args:
            size: The bytes of its input.
            seconds: How long it took.
            cpu_s: How much of that the thread computed, instead of waiting for the processor.
        """
        if self._slips is not None and self._slips.are_too_many(cpu_s):
            self._limit_s, self._largest = -1.0, -1
        elif seconds < self._limit_s and size > self._largest:
            self._largest = size


def spent(seconds: float, cpu_s: float) -> float:
    """Return how long a run would have taken with the processor and the interpreter to itself.

    A thread that comes back from computing waits for whoever runs Python, and on a busy machine
    for the processor. But not all is waiting: other threads may compute for it, too.

    Args:
        seconds: How long it took.
        cpu_s: How much of that its thread computed.
    """
    return max(cpu_s, seconds / _WAITS)


def size_of(inputs: Mapping[str, Array]) -> int:
    """Return the bytes of a run's inputs; of strings, those of their references."""
    return sum([array.nbytes for array in inputs.values()])


def is_even(signature: Signature) -> bool:
    """Return whether every row is as much work as any other, as far as its shape can tell."""
    return all(
        spec.dtype != STRING and spec.shape is not None and -1 not in spec.shape[1:]
        for spec in signature.inputs.values()
    )
