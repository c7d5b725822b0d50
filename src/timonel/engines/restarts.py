"""Whether and when a job is started again after a failure: a pure function of plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from timonel.engines.base import FailureCause
from timonel.engines.spec import RestartPolicy

# Trying again does not help: the same program on the same input ends the same way.
NEVER_RETRIED = frozenset(
    {
        FailureCause.USER_ERROR,
        FailureCause.OUT_OF_MEMORY,
        FailureCause.STOPPED,
        FailureCause.ENGINE,
    }
)
# May be chance, may be the program: once more, and again only after it got further than before.
RETRIED_ONCE = frozenset({FailureCause.CRASHED, FailureCause.START_TIMEOUT})


@dataclass(frozen=True)
class RestartHistory:
    """What restarts have been used up by.

    Attributes:
        restarts: Restarts that count.
        in_a_row: Restarts since one that got further than those before it.
        crashed: Whether one of them followed a failure that is retried once.
        crash_progress: How far the job had come at the last such failure, if it said so.
        progress: How far it had come at any failure.
    """

    restarts: int = 0
    in_a_row: int = 0
    crashed: bool = False
    crash_progress: float | None = None
    progress: float | None = None


@dataclass(frozen=True)
class Loss:
    """One failure, as far as it matters for what follows.

    Attributes:
        cause: Its cause; of a generation, the root cause.
        progress: How far it had come, such as its last step; None if unknown.
        ran_s: How long it had run, from when it was ready.
        otherwise: The next start differs from this one, so that even the same failure would be
            another one.
        alone: The others went on meanwhile, so that it need not say itself how far it has come.
        killed: It got SIGKILL, which no program does to itself: twice at one point is chance.
    """

    cause: FailureCause
    progress: float | None = None
    ran_s: float = 0.0
    otherwise: bool = False
    alone: bool = False
    killed: bool = False


@dataclass(frozen=True)
class Decision:
    """Whether to start again, after which delay, and what to remember."""

    retry: bool
    history: RestartHistory
    delay_s: float = 0.0
    reason: str | None = None


def decide(policy: RestartPolicy, history: RestartHistory, loss: Loss) -> Decision:
    """Decide what follows a failure of a whole generation, or of a task that restarts in place.

    What ran for long and got further has shown that restarts help it: those before do not count any
    more. So a job of weeks survives any number of pre-emptions, and one that dies again and again
    ends soon. Both are asked for: a program that hangs for long does not get further. What got
    further is started again at once; delays double from one restart that did not to the next.

    A task that is killed or pre-empted while the others go on, as a worker of parameter servers,
    is started again however often; only its delays grow, unless it ran for longer than the longest.

    Args:
        policy: The budget and the delays.
        history: What came before.
        loss: What happened.
    """
    cause, progress = loss.cause, loss.progress
    if cause in NEVER_RETRIED:
        return Decision(retry=False, history=history)
    further = _is_further(progress, history.progress) or (loss.alone and progress is None)
    if further and loss.ran_s >= policy.reset_after_s:
        history = replace(history, restarts=0, in_a_row=0, crashed=False)
    once = cause in RETRIED_ONCE and not (loss.otherwise or loss.killed)
    if once and history.crashed and not _is_further(progress, history.crash_progress):
        return Decision(retry=False, history=history, reason="it happened again at the same point")
    # The others went on meanwhile, and the fault is not this task's: nothing is used up.
    is_free = loss.alone and (loss.killed or cause is FailureCause.PREEMPTED)
    if history.restarts >= policy.max_restarts and not (is_free and policy.max_restarts):
        reason = f"all {policy.max_restarts} restarts are used up" if policy.max_restarts else None
        return Decision(retry=False, history=history, reason=reason)
    got_on = loss.alone and loss.ran_s >= policy.backoff_max_s
    in_a_row = 1 if got_on or _is_further(progress, history.progress) else history.in_a_row + 1
    after = replace(
        history,
        restarts=history.restarts + (not is_free),
        in_a_row=in_a_row,
        progress=_furthest(progress, history.progress),
    )
    if once:
        after = replace(after, crashed=True, crash_progress=progress)
    return Decision(retry=True, history=after, delay_s=backoff_s(policy, in_a_row))


def backoff_s(policy: RestartPolicy, restart: int) -> float:
    """Return the delay before the ``restart``-th restart in a row (from 1).

    None before the first, as whoever got further than before gains nothing by waiting; then
    doubling up to the maximum.
    """
    if restart == 1:
        return 0.0
    # The exponent is bounded because 2.0 ** 1024 overflows.
    return min(policy.backoff_s * 2.0 ** min(restart - 2, 64), policy.backoff_max_s)


def _is_further(progress: float | None, before: float | None) -> bool:
    if progress is None:
        return False
    return before is None or progress > before


def _furthest(progress: float | None, before: float | None) -> float | None:
    known = [value for value in (progress, before) if value is not None]
    return max(known, default=None)
