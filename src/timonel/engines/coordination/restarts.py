"""Decide whether and when a failed job restarts. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from timonel.engines.base import FailureCause
from timonel.engines.spec import RestartPolicy
from timonel.processes.backoff import backoff_s

# A retry does not help: the same program on the same input fails the same way.
NEVER_RETRIED = frozenset(
    {
        FailureCause.USER_ERROR,
        FailureCause.OUT_OF_MEMORY,
        FailureCause.STOPPED,
        FailureCause.ENGINE,
    }
)
# Chance or the program: retried once, and again only after the job made progress.
RETRIED_ONCE = frozenset({FailureCause.CRASHED, FailureCause.START_TIMEOUT})


@dataclass(frozen=True)
class RestartHistory:
    """Restarts so far, and the progress at each failure.

    Attributes:
        restarts: Restarts that count against the budget.
        in_a_row: Restarts in a row without progress.
        crashed: Whether a failure with a cause in `RETRIED_ONCE` was retried.
        crash_progress: Progress at the last such failure; None if unknown.
        progress: The most progress at any failure; None if unknown.
    """

    restarts: int = 0
    in_a_row: int = 0
    crashed: bool = False
    crash_progress: float | None = None
    progress: float | None = None


@dataclass(frozen=True)
class Loss:
    """Failure of a generation, or of a task that restarts in place.

    Attributes:
        cause: The cause; for a generation, the root cause.
        progress: Progress at the failure, such as the last step; None if unknown.
        ran_s: Seconds from ready to the failure.
        next_start_differs: The next start has another size, so the same failure may not recur.
        is_single_task: Only this task failed and the others continued: their progress counts where
            it reports none itself.
        killed: It got SIGKILL, which programs do not send to themselves: a second one at the same
            point is chance.
    """

    cause: FailureCause
    progress: float | None = None
    ran_s: float = 0.0
    next_start_differs: bool = False
    is_single_task: bool = False
    killed: bool = False


@dataclass(frozen=True)
class RestartDecision:
    """Whether to restart, the delay in seconds, and the new history."""

    retry: bool
    history: RestartHistory
    delay_s: float = 0.0
    reason: str | None = None


def decide(policy: RestartPolicy, history: RestartHistory, loss: Loss) -> RestartDecision:
    """Decide whether a failed generation or single task restarts.

    A job that ran for at least ``reset_after_s`` and made progress gets its whole budget back: one
    of weeks survives any number of preemptions, and one that fails again and again ends soon. Time
    alone does not count, because a program that hangs makes no progress. A job that made progress
    restarts without backoff; otherwise delays double from one restart to the next.

    A single task that was killed or preempted, such as a worker of parameter servers, restarts
    without limit. Its delays grow unless it ran for at least the maximum delay.

    Args:
        policy: The budget and the delays.
        history: The restarts so far.
        loss: The failure.
    """
    cause, progress = loss.cause, loss.progress
    if cause in NEVER_RETRIED:
        return RestartDecision(retry=False, history=history)
    further = _is_further(progress, history.progress) or (loss.is_single_task and progress is None)
    if further and loss.ran_s >= policy.reset_after_s:
        history = replace(history, restarts=0, in_a_row=0, crashed=False)
    once = cause in RETRIED_ONCE and not (loss.next_start_differs or loss.killed)
    if once and history.crashed and not _is_further(progress, history.crash_progress):
        return RestartDecision(
            retry=False, history=history, reason="it failed again at the same point"
        )
    # The other tasks continued and this one is not at fault: it costs no restart.
    is_free = loss.is_single_task and (loss.killed or cause is FailureCause.PREEMPTED)
    if history.restarts >= policy.max_restarts and not (is_free and policy.max_restarts):
        reason = f"all {policy.max_restarts} restarts are used up" if policy.max_restarts else None
        return RestartDecision(retry=False, history=history, reason=reason)
    ran_long = loss.is_single_task and loss.ran_s >= policy.backoff_max_s
    in_a_row = 1 if ran_long or _is_further(progress, history.progress) else history.in_a_row + 1
    after = replace(
        history,
        restarts=history.restarts + (not is_free),
        in_a_row=in_a_row,
        progress=_furthest(progress, history.progress),
    )
    if once:
        after = replace(after, crashed=True, crash_progress=progress)
    delay_s = backoff_s(in_a_row, policy.backoff_s, policy.backoff_max_s)
    return RestartDecision(retry=True, history=after, delay_s=delay_s)


def _is_further(progress: float | None, before: float | None) -> bool:
    if progress is None:
        return False
    return before is None or progress > before


def _furthest(progress: float | None, before: float | None) -> float | None:
    known = [value for value in (progress, before) if value is not None]
    return max(known, default=None)
